"""The project's own consumer as a part of the simulation: real loop, simulated source and sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from typing_extensions import override

from dagster_leasehold.assets.consuming.bootstrapping import bootstrap_cursors
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.consuming.run_requests import RunRequests
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import CursorInvalid, StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources import source
from tests.simulation.protocol.parts import BATCH_RECORDS_MAX, RUN_BUDGET_S, Run
from tests.simulation.protocol.stage import ShardLog
from tests.simulation.protocol.waiting_runs import Waits

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SimulatedSource(source.ShardSource):
    """A simulated log as a source: cursors are the numbers of records."""

    log: ShardLog

    @override
    def list_shards(self) -> list[ShardListing]:
        return self.log.listing()

    @override
    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, source.ShardBounds]:
        rows = ((shard, self.log.shards[shard]) for shard in shards)
        return {shard: source.ShardBounds("0", str(row.end), row.read_only) for shard, row in rows}

    @override
    def cursor_at(self, shard: ShardId, position: source.Position | datetime) -> str:
        # A simulated log knows no times.
        return str(self.log.shards[shard].end) if position is source.Position.END else "0"

    @override
    def plan(self, shard: ShardId, start: str, limits: source.Limits) -> source.PlannedRange:
        row = self.log.shards[shard]
        if int(start) > row.end:
            raise CursorInvalid(
                f"Shard {shard} ends at {row.end}, before {start}: use a cursor of it."
            )
        end = min(int(start) + limits.records_max, row.end)
        return source.PlannedRange(str(end), end - int(start), row.read_only and end == row.end)

    @override
    def lag(self, shard: ShardId, cursor: str, bounds: source.ShardBounds) -> int | None:
        del shard
        return int(bounds.end) - int(cursor)

    @override
    def read(self, range_: source.ReadRange) -> Iterator[pa.RecordBatch]:
        # A simulated record has no content, and no Spark worker asks for it.
        del range_
        return iter(())

    @override
    def spark_options(self) -> Mapping[str, str]:
        return {}


def consume(run: Run) -> None:
    """Consume as a run does, with the loop of `assets.consuming.consumption`."""

    def sweep(
        ranges: Sequence[source.ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        del numbers
        written = run.read((each.shard, each.start, each.end) for each in ranges)
        return {
            shard: SweepOutcome(result.attempt, result.files, result.statistics)
            for shard, result in written.items()
        }

    stream = ShardStream(
        name=run.key.stream,
        source=SimulatedSource(run.log),
        group=run.key.group,
        limits=source.Limits(records_max=BATCH_RECORDS_MAX),
        pace=Pace(run_budget_s=RUN_BUDGET_S),
    )
    cursors = bootstrap_cursors(run.store.pulse(run.key), run.node) if run.pinned else None
    consumer = Consumer(
        stream=stream,
        store=run.store,
        node=run.node,
        run=run.name,
        sweeper=sweep,
        heartbeat=run.heartbeat,
        clock=run.clock,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=run.clock()),
        stop_requested=run.stop_requested,
        after_commit=run.acknowledge,
        replaces=run.replaces,
        bootstrap=cursors,
        follow=run.waits and _follow(run, run.waits),
    )
    for report in consumer.consume(run.shards).values():
        run.say(str(report))


def _follow(run: Run, waits: Waits) -> Follow:
    """Return the settings with which a simulated run follows its shards and plans for its node."""

    ends_s = run.clock() + waits.pace.budget_s

    def requests() -> RunRequests:
        wishes = waits.look()
        stop = wishes.stop or run.clock() >= ends_s
        return RunRequests(wishes.take, wishes.let_go, wishes.finish, stop)

    def gained() -> Sequence[ShardId]:
        try:
            return run.planner.gained(run.name) if run.planner else ()
        except StoreError as error:
            run.say(str(error))
            return ()

    # A simulated record has no bytes that could make a batch sooner.
    pace = Pace(waits.pace.commit_interval_s, idle_limit_s=waits.pace.idle_limit_s)
    return Follow(pace, waits.wait, requests, gained=gained)
