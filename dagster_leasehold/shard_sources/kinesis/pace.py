"""The pace of reads of a shard, shared by all processes of one host.

A shard answers five reads and two megabytes a second to all its readers together. The sensors, runs
and Spark workers of a host share a small file for each shard. It holds the time when the next read
is allowed, and a lock gives the processes turns. The time is the monotonic clock's, which all
processes of a host share. A time from before a reboot is recognized because it is far ahead.

Readers on other hosts are unknown here. The service refuses reads because of them, and the refused
reads are retried (`shard_sources.retrying`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

AHEAD_MAX_S = 60.0
_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Pace:
    """Delays the reads of a shard.

    Attributes:
        folder: the folder of the files, created on use.
        calls_per_s: reads of one shard in a second.
        bytes_per_s: bytes of one shard in a second.
        clock: monotonic seconds of the host.
        sleep: waits.
    """

    folder: Path
    calls_per_s: float
    bytes_per_s: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def before_read(self, shard: str) -> None:
        """Wait until this process can read the shard."""
        turn_s = self._delay(shard, 1 / self.calls_per_s) - 1 / self.calls_per_s
        if (wait_s := turn_s - self.clock()) > 0:
            self.sleep(wait_s)

    def after_read(self, shard: str, bytes_read: int) -> None:
        """Delay the next read by the cost of this one's bytes."""
        excess_s = bytes_read / self.bytes_per_s - 1 / self.calls_per_s
        if excess_s > 0:
            self._delay(shard, excess_s)

    def _delay(self, shard: str, seconds: float) -> float:
        """Move the shard's next read, and return its time."""
        file = self.folder / f"{hashlib.sha256(shard.encode()).hexdigest()[:32]}.pace"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(f"{file}.lock", timeout=_LOCK_WAIT_S):
                now_s = self.clock()
                next_s = max(_next_read_s(file, now_s), now_s) + seconds
                file.write_text(repr(next_s), encoding="ascii")
        except (OSError, Timeout):
            # Without the file the read is not delayed, and the service's refusals slow it down.
            return self.clock() + 1 / self.calls_per_s
        return next_s


def _next_read_s(file: Path, now_s: float) -> float:
    try:
        next_s = float(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0
    return next_s if next_s - now_s < AHEAD_MAX_S else 0.0
