"""The pace of one host's reads of a shard, shared by all of its processes.

A shard answers five reads and two megabytes a second, to all who ask together. Sensors, runs and
Spark's workers of one host are processes of their own: for each shard they share a small file that
says when the next read can be made, and take turns by its lock. The time in it is the monotonic
clock's, which is one for all processes of a host; a value that a reboot has left is seen by being
far ahead.

The reads of other hosts and applications are unknown here: the service's refusals tell of them,
and are waited out (`shard_sources.retrying`).
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
    """Lets reads of a shard through one after the other.

    Attributes:
        folder: where the files are; made when it is first needed.
        calls_per_s: reads of one shard in a second.
        bytes_per_s: bytes of one shard in a second.
        clock: monotonic seconds, the same for all processes of the host.
        sleep: waits.
    """

    folder: Path
    calls_per_s: float
    bytes_per_s: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def before_read(self, shard: str) -> None:
        """Wait for this process's turn to read the shard."""
        turn_s = self._move(shard, lambda next_s, now_s: max(next_s, now_s) + 1 / self.calls_per_s)
        wait_s = turn_s - 1 / self.calls_per_s - self.clock()
        if wait_s > 0:
            self.sleep(wait_s)

    def after_read(self, shard: str, bytes_read: int) -> None:
        """Account for a read's records: the next one waits until it has been paid for."""
        cost_s = bytes_read / self.bytes_per_s
        # What one read costs beyond the pause that every read makes.
        if cost_s > 1 / self.calls_per_s:
            more_s = cost_s - 1 / self.calls_per_s
            self._move(shard, lambda next_s, now_s: max(next_s, now_s) + more_s)

    def _move(self, shard: str, to: Callable[[float, float], float]) -> float:
        """Move the time of the shard's next read; returns the new one."""
        file = self.folder / f"{hashlib.sha256(shard.encode()).hexdigest()[:32]}.pace"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(f"{file}.lock", timeout=_LOCK_WAIT_S):
                now_s = self.clock()
                moved_s = to(_stored(file, now_s), now_s)
                file.write_text(repr(moved_s), encoding="ascii")
        except (OSError, Timeout):
            # A host without the folder still reads, and the service's refusals slow it down.
            return self.clock() + 1 / self.calls_per_s
        return moved_s


def _stored(file: Path, now_s: float) -> float:
    try:
        stored_s = float(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0.0
    return stored_s if stored_s - now_s < AHEAD_MAX_S else 0.0
