"""The steady writer of the log, and the resharding of it."""

from __future__ import annotations

import threading
from pathlib import Path

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.chaos.stream import SHARDS, log_folder, record

RECORDS, EVERY_S = 40, 0.5


class SteadyWriter:
    """Appends to every writable shard all the time, on a separate thread."""

    def __init__(self, home: Path) -> None:
        self.log = LocalLog.create(log_folder(home), SHARDS)
        self._lock = threading.Lock()
        self._ends: dict[ShardId, int] = {row.shard: 0 for row in self.log.list_shards()}
        self._written = dict(self._ends)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def __enter__(self) -> SteadyWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def written(self) -> dict[ShardId, int]:
        """Return the number of records of each shard, read-only ones included."""
        with self._lock:
            return dict(self._written)

    def split(self) -> list[ShardId]:
        """Split the first shard that is written; it is read-only from then on."""
        with self._lock:
            parent = min(self._ends)
            return self._replace([parent], list(self.log.split(parent)))

    def merge(self, first: ShardId, second: ShardId) -> list[ShardId]:
        with self._lock:
            return self._replace([first, second], [self.log.merge(first, second)])

    def _replace(self, parents: list[ShardId], children: list[ShardId]) -> list[ShardId]:
        for shard in parents:
            del self._ends[shard]
        for shard in children:
            self._ends[shard] = self._written[shard] = 0
        return children

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            with self._lock:
                for shard, end in self._ends.items():
                    values = [record(shard, end + n) for n in range(RECORDS)]
                    self.log.append(shard, values)
                    self._ends[shard] = self._written[shard] = end + RECORDS
