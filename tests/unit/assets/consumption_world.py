"""A small world to consume in: a real local log, the model store, and a sweeper without Spark."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.assets.consuming.exact_records import add, exact
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.output.shard_files import ShardFiles
from dagster_leasehold.assets.output.worker_results import RangeStatistics
from dagster_leasehold.assets.partition_fields import UNDIVIDED
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.ledger_output import ledger_records

NODE = NodeName("a")
OTHER = NodeName("b")


class ArrowSweeper:
    """Writes the records that it reads, in this process, through the sink's own files."""

    def __init__(self, log: LocalLog, output_root: OutputPlace) -> None:
        self.log = log
        self.output_root = output_root
        self.sweeps: list[list[ReadRange]] = []
        self.results: dict[ShardId, SweepResult] = {}
        self.before: Callable[[], None] = lambda: None
        self.refuses: Callable[[bytes], bool] = lambda _: False
        self.transform = ""
        self.partitioning = UNDIVIDED
        self.keeps: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows
        self._numbers = itertools.count()
        self._label = uuid.uuid4().hex  # an address comes again once its owner is gone

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        self.sweeps.append(list(ranges))
        self.before()
        return {
            range_.shard: self.results.get(range_.shard)
            or self._write(range_, numbers[range_.shard])
            for range_ in ranges
        }

    def _write(self, range_: ReadRange, numbers: range) -> SweepOutcome:
        attempt = f"attempts/{next(self._numbers)}-{self._label}"
        own = {range_.shard: numbers}
        files = ShardFiles(
            self.output_root / attempt, "0-0", own, self.transform, self.partitioning
        )
        seen = RangeStatistics()
        for batch in self.log.read(range_):
            for part in exact(batch):
                seen = add(seen, part)
                files.add(self.keeps(self._parsed(part)))
        return SweepOutcome.of(attempt, seen, files.close())

    def _parsed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with a transform's verdict on each, where it has one on any."""
        values = rows.column("value").to_pylist()
        errors = ["it is refused" if self.refuses(value) else None for value in values]
        if not any(errors):
            return rows
        return rows.append_column(ERROR_COLUMN, pa.array(errors, pa.string()))


@dataclass
class Beat:
    """A heartbeat that is trusted until a test changes it."""

    trusted: bool = True


@dataclass
class World:
    """A stream of `shards` shards, with `records` records each, all held by node `a`.

    Its output is in `output`, or `elsewhere`.
    """

    folder: Path
    shards: int = 2
    records: int = 10
    records_max: int = 4
    declaration: dict[str, Any] = field(default_factory=dict)
    elsewhere: OutputPlace | None = None

    def __post_init__(self) -> None:
        self.log = LocalLog.create(self.folder / "log", self.shards)
        for listing in self.log.list_shards():
            self.append(listing.shard, self.records)
        self.output = self.folder / "output"
        self.place = self.elsewhere or local_place(self.output)
        self.stream = ShardStream(
            name="orders",
            source=self.log,
            limits=Limits(records_max=self.records_max),
            **self.declaration,
        )
        self.store = MemoryStore()
        self.store.create_group(self.stream.new_group(20.0))
        for node in (NODE, OTHER):
            self.store.register(self.key, Node(node, 0, f"{node}-1"), observer="test")
        self.sweeper = ArrowSweeper(self.log, self.place)
        self.sweeper.partitioning = self.stream.iceberg.divided_by
        self.beat = Beat()
        self.now_s = 0.0
        self.sync()

    @property
    def key(self) -> GroupKey:
        return self.stream.key

    @property
    def ids(self) -> list[ShardId]:
        return [lease.shard for lease in self.store.snapshot(self.key).shards]

    def append(self, shard: ShardId, records: int) -> None:
        begin = int(self.log.bounds([shard])[shard].end)
        self.log.append(shard, [b"%s:%d" % (shard.encode(), begin + n) for n in range(records)])

    def sync(self, *, owner: NodeName = NODE) -> None:
        """Store the log's shards, and let `owner` claim all free ones."""
        self.store.sync_shards(self.key, self.log.list_shards(), observer="test")
        claims = {
            lease.shard: (owner, lease.lease_id)
            for lease in self.store.snapshot(self.key).shards
            if lease.state == "not_alloc"
        }
        outcomes = self.store.claim(self.key, claims, observer="test", reason="test")
        assert all(isinstance(outcome, Changed) for outcome in outcomes.values())

    def lease(self, shard: str) -> Any:
        return next(row for row in self.store.snapshot(self.key).shards if row.shard == shard)

    def consumer(self, run: str = "run-1", **arguments: Any) -> Consumer:
        given: dict[str, Any] = {
            "stream": self.stream,
            "store": self.store,
            "node": NODE,
            "run": run,
            "sweeper": self.sweeper,
            "heartbeat": self.beat,
            "clock": lambda: self.now_s,
        }
        return Consumer(**(given | arguments))

    def consume(self, run: str = "run-1", **arguments: Any) -> dict[ShardId, ConsumptionReport]:
        return self.consumer(run, **arguments).consume(self.ids)

    def deliver(self) -> None:
        """Flag all events of Dagster's as delivered."""
        events = self.store.pending_events(self.key)
        self.store.mark_delivered(self.key, [event.sequence for event in events])

    def committed(self, shard: str) -> list[bytes]:
        """The values of a shard's committed records."""
        batches = list(ledger_records(self.store, self.key, self.place, ShardId(shard)))
        return pa.Table.from_batches(batches).column("value").to_pylist() if batches else []

    def expected(self, shard: str, count: int) -> list[bytes]:
        return [b"%s:%d" % (shard.encode(), number) for number in range(count)]
