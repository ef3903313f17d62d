"""A day of a busy stream and the days after it, under a virtual clock: the remaining files.

The sensor, the compactions that it launches, the ledger and vacuum are the real ones. The files
have no content: their sizes are those of 300 records a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.output.units import Unit, unit_files
from dagster_leasehold.assets.places.local_place import LocalPlace, local_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.continued_compaction import ContinuedCompaction
from dagster_leasehold.assets.rewriting.merges import LARGE_ENOUGH, NO_COLUMNS, UnitColumns
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, BatchStatistics, DataFile
from dagster_leasehold.sensors.compaction import compaction_step
from dagster_leasehold.sensors.shard_list import sync_listing
from tests.unit.sensors.streams import memory_deployment, run_step, scripted_stream

pytestmark = pytest.mark.long

SHARDS = 2
"""Two of eight shards that share 300 records/s: they do not affect each other."""
COMMIT_S, RECORDS = 10, 375
FRAME_BYTES, RECORD_BYTES = 2_500, 34
TICK_S = 300
"""The sensor ticks each minute; most of those ticks would find the node in its pause."""
NODE = NodeName("a")
MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)


def size_of(records: int) -> int:
    return FRAME_BYTES + RECORD_BYTES * records


class SizedCompactor(Compactor):
    """A compactor whose files are empty, with the sizes of real ones in the ledger."""

    copied: int = 0

    def columns(self, unit: Unit) -> UnitColumns:
        return NO_COLUMNS

    def _write(self, shard: ShardId, merge: Sequence[Unit], attempt: str) -> tuple[DataFile, ...]:
        records = sum(file.records for unit in merge for file in unit_files(unit, quarantine=False))
        path = f"{attempt}/{shard}.parquet"
        (self.output_root / attempt).make_folder()
        Path(str(self.output_root / path)).touch()
        self.copied += size_of(records)
        together = sum(batch.batches for unit in merge for batch in unit)
        return (DataFile(path, records, size_of(records), False, together),)


class Days:
    """A stream under a virtual clock, whose shards are all on one node."""

    def __init__(
        self, instance: dg.DagsterInstance, output: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.instance, self.output, self.place = instance, output, local_place(output)
        self.now_s, self.cursor = 0.0, ""
        self.stream, self.source = scripted_stream(SHARDS)
        deployment, self.store = memory_deployment("a")
        sync_listing(self.store, self.stream, self.source.list_shards(), timeout_s=20.0)
        address = ensure_instance_address(instance)
        self.store.register(self.key, Node(NODE, 0, "a-1", address=address), observer="test")
        rows = self.store.snapshot(self.key).shards
        self.shards = [row.shard for row in rows]
        claims = {row.shard: (NODE, row.lease_id) for row in rows}
        self.store.claim(self.key, claims, observer="test", reason="it was free")
        self.step = compaction_step(self.stream, deployment, lambda: self.now_s)
        self.batches = self.runs = self.written = self.copied = 0
        (output / "attempts/run").mkdir(parents=True)
        # The clock of the file system is the virtual one, too.
        monkeypatch.setattr("dagster_leasehold.assets.places.local_place.os.utime", self.touch)
        monkeypatch.setattr(LocalPlace, "now_ns", lambda _: self.time_ns)

    @property
    def key(self):
        return self.stream.key

    @property
    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    def touch(self, path: Path, _: object = None) -> None:
        UTIME(path, ns=(self.time_ns, self.time_ns))

    def commit(self) -> None:
        """Commit a batch of each shard: 10 s of its records.

        The rows are written past the store's operations, which read all rows of a shard.
        """
        number = self.batches
        start, end = str(number * RECORDS), str((number + 1) * RECORDS)
        for shard in self.shards:
            path = f"attempts/run/{shard}-{number:05}.parquet"
            (self.output / path).touch()
            files = (DataFile(path, RECORDS, size_of(RECORDS)),)
            self.store._groups[self.key].batches[shard, number] = Batch(
                shard, number, start, end, BatchState.COMMITTED, 1, "run", NODE, "at",
                files=files,
                statistics=BatchStatistics(RECORDS, 190 * RECORDS, RECORDS),
                committed_at=MIDNIGHT + timedelta(seconds=self.now_s),
            )  # fmt: skip
            self.written += size_of(RECORDS)
        self.batches += 1

    def pass_by(self, hours: float, *, busy: bool) -> None:
        """Advance the clock; the sensor ticks, and the runs that it launches are carried out at
        once.
        """
        for _ in range(round(hours * 3600 / COMMIT_S)):
            self.now_s += COMMIT_S
            if busy:
                self.commit()
            if self.now_s % TICK_S == 0:
                self.tick()

    def tick(self) -> None:
        outcome = run_step(self.step, self.instance, self.cursor)
        self.cursor = self.cursor if outcome.cursor is None else outcome.cursor
        for request in outcome.run_requests:
            config = request.run_config["ops"]["compact__orders_eu"]["config"]
            self.compact(config)
            if config["vacuum"]:
                age = timedelta(seconds=self.stream.retention.vacuum_after_s)
                vacuum(self.store, self.key, self.place, older_than=age)

    def compact(self, config: dict[str, Any]) -> None:
        """Do the work of a run of the sensor."""
        self.runs += 1
        run, target = f"compact-{self.runs}", self.stream.retention.compact_target_bytes
        compactor = SizedCompactor(
            store=self.store, key=self.key, output_root=self.place, run=run, target_bytes=target
        )
        age = timedelta(seconds=self.stream.retention.compact_after_s)
        old_until = {ShardId(shard): number for shard, number in config["old_until"].items()}
        done = ContinuedCompaction(
            compactor, age, old_until, stopped=lambda _: ""
        ).compact([ShardId(shard) for shard in config["shards"]])  # fmt: skip
        assert not [each.error for each in done.reports.values() if each.error]
        self.copied += compactor.copied

    def sizes(self, shard: ShardId) -> list[int]:
        return [file.bytes for row in self.store.batches(self.key, shard) for file in row.files]

    def on_disk(self) -> int:
        return sum(path.is_file() for path in (self.output / "attempts").rglob("*"))


UTIME = os.utime


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Days]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Days(instance, tmp_path, monkeypatch)


def test_a_day_of_small_files_ends_with_few_files(days: Days):
    """Goal: few files per shard once the records have ended, each copied a few times.

    The first file has at least half of the target, each other file is larger than all later ones
    together, and a day later no file is on the disk that the ledger does not name.
    """
    days.pass_by(24, busy=True)
    half = days.stream.retention.compact_target_bytes * LARGE_ENOUGH
    young = days.stream.retention.compact_after_s / COMMIT_S
    for shard in days.shards:
        sizes = days.sizes(shard)
        # Files of the last hour, and of the half hour between two compactions of a node.
        assert len(sizes) <= 6 + 1.5 * young
        assert sizes[0] >= half
    days.pass_by(1.6, busy=False)
    for shard in days.shards:
        sizes = days.sizes(shard)
        assert len(sizes) <= 6
        assert all(size > sum(sizes[place + 1 :]) for place, size in enumerate(sizes))
    assert days.copied < 3 * days.written
    days.pass_by(25.5, busy=False)
    assert days.on_disk() == sum(len(days.sizes(shard)) for shard in days.shards)
    runs = days.runs
    days.pass_by(48, busy=False)
    assert days.runs == runs, "there is nothing left to do"
