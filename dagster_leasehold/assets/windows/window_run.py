"""One run of a window of event time: have its files made, and swap them in."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from dagster_leasehold.assets import errors
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.guarding.job_watch import STARVED_AFTER_S
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, guarded_run
from dagster_leasehold.assets.guarding.stall_guard import StallGuard, guarded_source
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER, attempt_name, touch_replaced
from dagster_leasehold.assets.output.expired_output import refuse_expired_times
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.table.catching_up import catch_up
from dagster_leasehold.assets.output.table.reading import EventSpan, TablePlan, plan_table
from dagster_leasehold.assets.output.units import Ended
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.assets.windows.event_frontier import ShardTime, frontier
from dagster_leasehold.assets.windows.window_job import make_files
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.roles.windows import Windows
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.lease_store.window_rows import EventWindow

if TYPE_CHECKING:
    from dagster_leasehold.assets.spark.spark_resource import SparkResource

_LOG = logging.getLogger(__name__)
GIVEN_UP = "gave the hour up, which stays as it was: materialize it again"
TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class WindowMade:
    """The results of a run for a window.

    Attributes:
        window: its row as it was written.
        source_files: the files of committed output that it was made from.
    """

    window: EventWindow
    source_files: int


def shard_times(store: Groups, stream: ShardStream) -> tuple[list[ShardTime], frozenset[ShardId]]:
    """Return how far each shard has come, and the shards that only the source knows yet.

    The lease tables are read first, or an hour could be taken for complete too early:

    1. the source is asked, and lists shard 0 alone;
    2. shard 0 is split, read to its end and finished;
    3. the lease tables show shard 0 as finished, and its children not yet: no shard seems to hold.

    In this order, a reader that sees a parent finished sees its children listed.

    Raises:
        SourceError: the source does not answer.
    """
    leases = store.snapshot(stream.key).shards
    listed = {row.shard for row in stream.source.list_shards()}
    return lease_times(leases), frozenset(listed - {lease.shard for lease in leases})


def lease_times(leases: Sequence[ShardLease]) -> list[ShardTime]:
    """Return how far each shard has come, as the lease tables say it."""
    return [
        ShardTime(lease.shard, lease.watermark, finished=lease.state is ShardState.OVER)
        for lease in leases
    ]


def _planned(
    deployment: Deployment, stream: ShardStream, span: EventSpan
) -> tuple[TablePlan, dict[ShardId, int]]:
    """Plan to read all that is committed of a span; return for each shard what that covers, too.

    It waits until the table shows that, or an hour could be made without some of its records. What
    is covered is the number before which all batches are in the planned snapshot: they are
    published in order, so that one that came between the look at the cursors and the plan is there
    with all before it.
    """
    store, key, root = deployment.store(), stream.key, deployment.output_folder(stream.key)
    catch_up(store, key, root, table=stream.iceberg, catalog=deployment.catalog)
    numbers = {shard: end for shard, end in (store.published_until(key) or {}).items() if end}
    plan = plan_table(store, key, root, span=span, catalog=deployment.catalog)
    refuse_expired_times(store, key, span.since, span.until)
    for file in plan.files:
        if file.numbers is not None:
            numbers[file.shard] = max(numbers.get(file.shard, 0), file.numbers.stop)
    return plan, numbers


def make_window(
    deployment: Deployment,
    stream: ShardStream,
    *,
    asset: str,
    transform: Transform,
    start: datetime,
    end: datetime,
    run: str,
    spark: SparkResource,
    out_of_order: timedelta = timedelta(0),
    even_if_incomplete: bool = False,
    ended: Ended = lambda _: False,
    tell: Callable[[str], None] = _LOG.warning,
    starved_after_s: float = STARVED_AFTER_S,
) -> WindowMade:
    """Make `[start, end)` of a downstream asset from all that is committed now.

    `ended` returns True for a run that has certainly ended: its attempts are then forgotten, and
    its job is interrupted. `tell` takes a sentence for people while the run continues, such as
    after `starved_after_s` seconds when Spark runs no task.

    Raises:
        WindowIncomplete: a shard can still deliver records of the window.
        TableUnavailable: committed output is not published.
        OutputUnreadable: records of the window might have expired: the window's output stays.
        TransformError: the transform raised, or returned no DataFrame.
        SparkUnavailable: Spark does not answer.
        RunStalled: Spark made no progress for the stream's `stall_limit_s`.
        RewriteRefused: other runs of the window were faster each time.
    """
    store = deployment.store()
    with (
        span("run", stream.key, job="hour", run=run, asset=asset),
        StallGuard(stream.pace.stall_limit_s, time.monotonic, GIVEN_UP) as guard,
        guarded_run(
            spark,
            guard,
            run=run,
            work=f"an hour of stream {stream.name}",
            tell=tell,
            ended=ended,
            starved_after_s=starved_after_s,
        ) as on_spark,
    ):
        if not even_if_incomplete:
            asked = replace(stream, source=guarded_source(stream.source, guard))
            _check_complete(
                store, asked, asset=asset, start=start, end=end, out_of_order=out_of_order
            )
        _forget_ended(store, stream, ended, on_spark)
        making = _Making(deployment, stream, asset, transform, start, end, run, guard, on_spark)
        return making.make()


@dataclass(frozen=True, slots=True)
class _Making:
    """A window that a run makes.

    The files are written into a folder that belongs to one attempt alone; the window's row then
    names them in the place of the old ones, if the row did not change meanwhile. Otherwise the
    files may lack records that were counted, and are made again. The attempt is in the store before
    its first file, and ends with the write of the row: vacuum leaves its files alone until then.
    """

    deployment: Deployment
    stream: ShardStream
    asset: str
    transform: Transform
    start: datetime
    end: datetime
    run: str
    guard: StallGuard
    on_spark: RunOnSpark

    def make(self) -> WindowMade:
        """Make the window; a session that is gone is replaced once."""
        store, key = self.deployment.store(), self.stream.key
        root = owned(store, self.deployment.output_folder(key))
        asset, start, end = self.asset, self.start, self.end
        renewed = False
        for _ in range(TRIES_MAX):
            before = _window_made(store, self.stream, asset=asset, start=start, end=end)
            plan, covered = _planned(self.deployment, self.stream, EventSpan(start, end))
            name = attempt_name(self.run)
            attempt = f"{ATTEMPTS_FOLDER}/{name}"
            store.begin_window(key, name, self.run)
            try:
                files = self._files(plan, root, attempt)
            except BaseException as error:
                # A store that does not answer keeps the attempt until a later run finds this one
                # ended.
                with suppress(StoreError):
                    store.end_window(key, name)
                # The server can still write into this attempt's folder: the next one has its own.
                if not renewed and isinstance(error, errors.SessionLost) and self._renewed():
                    renewed = True
                    continue
                raise
            row = _window_row(before, asset, start, end, run=self.run, files=files, covered=covered)
            replaced = before.files if before else ()
            touch_replaced(root, replaced)
            if isinstance(store.put_window(key, row, attempt=name), Changed):
                touch_replaced(root, replaced)
                return WindowMade(row, len(plan.files))
            store.end_window(key, name)
            (root / attempt).remove_folder()
        raise errors.RewriteRefused(
            f"The hour {time_text(start)} of {asset} changed {TRIES_MAX} times while this run made "
            "it: it stays as the others left it."
        )

    def _files(self, plan: TablePlan, root: OutputPlace, attempt: str) -> tuple[DataFile, ...]:
        if not plan.files:
            # An hour without records has no columns either that a transform could work on.
            return ()
        event_span = EventSpan(self.start, self.end)
        to_do = partial(make_files, self.on_spark, self.stream, plan, event_span)
        with span("spark"):
            return self.guard.call(
                lambda: self.on_spark.awaited,
                lambda: to_do(transform=self.transform, root=root, name=attempt),
            )

    def _renewed(self) -> bool:
        return self.guard.call("Spark", self.on_spark.renew) is not None


def _forget_ended(store: Windows, stream: ShardStream, ended: Ended, on_spark: RunOnSpark) -> None:
    for each in store.window_attempts(stream.key):
        if ended(each.run):
            on_spark.succeed(each.run)
            store.end_window(stream.key, each.attempt)


def _window_made(
    store: Windows, stream: ShardStream, *, asset: str, start: datetime, end: datetime
) -> EventWindow | None:
    overlapping = store.windows(stream.key, asset, since=start, until=end)
    return next((window for window in overlapping if window.start == start), None)


def _window_row(
    before: EventWindow | None,
    asset: str,
    start: datetime,
    end: datetime,
    *,
    run: str,
    files: tuple[DataFile, ...],
    covered: Mapping[ShardId, int],
) -> EventWindow:
    """Return the row of a window that covers batches below some numbers, in place of `before`."""
    return EventWindow(
        asset,
        start,
        end,
        version=before.version + 1 if before else 1,
        generation=before.generation + 1 if before else 1,
        run=run,
        files=files,
        records=sum(file.records for file in files),
        covered=covered,
        late=before.late if before else 0,
        made_at=datetime.now(UTC),
    )


def _check_complete(
    store: Groups,
    stream: ShardStream,
    *,
    asset: str,
    start: datetime,
    end: datetime,
    out_of_order: timedelta,
) -> None:
    shards, unlisted = shard_times(store, stream)
    reached = frontier(shards, unlisted=unlisted, out_of_order=out_of_order)
    if reached.until is None or reached.until < end:
        raise errors.WindowIncomplete(
            f"The hour {time_text(start)} of {asset} is not complete ({reached.clause}): wait for "
            "its sensor, or set even_if_incomplete in the config."
        )


def window_paths(
    store: Windows,
    stream: ShardStream,
    output_root: Output,
    asset: str,
    *,
    hours: Collection[datetime] | None = None,
) -> list[str]:
    """Return the files of a downstream asset's output by hour, of some hours or of all.

    Examples:
        >>> store = open_store("sqlite:///leases.db")
        >>> visits = ShardStream("visits", LocalLog("log"))
        >>> try:
        ...     window_paths(store, visits, "output", "visits_per_hour")
        ... except UnknownGroup:
        ...     print("Nothing has consumed this stream yet.")
        Nothing has consumed this stream yet.
    """
    folder = output_place(output_root)
    return [
        str(folder / file.path)
        for window in store.windows(stream.key, asset)
        if hours is None or window.start in hours
        for file in window.files
    ]
