"""The rate limit for reads of a shard, shared by all processes of one host.

A shard allows five reads and two megabytes a second for all its readers together. After a read of
ten megabytes it refuses all reads for five seconds. So the sensors, runs and Spark workers of a
host take turns. A small file for each shard has the time of the next read. A lock is held during
the read, because its cost is known only afterwards. The time is from the monotonic clock, which all
processes of a host share. A time from before a reboot is recognized because it is far ahead.

Reads by other hosts are not counted. If the service refuses reads because of them,
`shard_sources.retrying` retries.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

AHEAD_MAX_S = 60.0
_LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Pace:
    """Spaces the reads of each shard.

    Attributes:
        folder: the folder of the files, created on use.
        calls_per_s: the most reads of one shard in a second.
        bytes_per_s: the most bytes of one shard in a second.
        clock: monotonic seconds of the host.
    """

    folder: Path
    calls_per_s: float
    bytes_per_s: int
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @contextmanager
    def turn(self, shard: str) -> Generator[Callable[[int], None]]:
        """Wait for a turn to read a shard; pass the number of bytes read to the result."""
        file = self.folder / f"{hashlib.sha256(shard.encode()).hexdigest()[:32]}.pace"
        lock = FileLock(f"{file}.lock", timeout=_LOCK_WAIT_S)
        locked = self._acquire(lock, file)
        start_s, sizes = self.clock(), list[int]()
        try:
            yield sizes.append
        finally:
            if locked:
                cost_s = max(1 / self.calls_per_s, sum(sizes) / self.bytes_per_s)
                with suppress(OSError):
                    file.write_text(repr(start_s + cost_s), encoding="ascii")
                lock.release()

    def _acquire(self, lock: FileLock, file: Path) -> bool:
        """Take the lock when the next read is due; return False if that is impossible."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock.acquire()
            if (wait_s := self._wait_s(file)) > 0:
                lock.release()
                self.sleep(wait_s)
                lock.acquire()
                # If another process took this turn, keep the lock until the next one.
                self.sleep(max(0.0, self._wait_s(file)))
            return True
        except (OSError, Timeout):
            # Without the lock the read is not delayed here; the service throttles it instead.
            return False

    def _wait_s(self, file: Path) -> float:
        try:
            wait_s = float(file.read_text(encoding="ascii")) - self.clock()
        except (OSError, ValueError):
            return 0.0
        return wait_s if wait_s < AHEAD_MAX_S else 0.0
