"""Builds a window of event time in one run, with a Spark job and a swap of files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

from dagster_leasehold.assets import errors
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.guarding.job_watch import STARVED_AFTER_S, explained, watched
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark, guarded_run
from dagster_leasehold.assets.guarding.stall_guard import StallGuard, guarded_source
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER, attempt_name, touch_replaced
from dagster_leasehold.assets.output.committed_output import parquet_frame
from dagster_leasehold.assets.output.expired_output import refuse_expired_times
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.output.store_frames import write_frame
from dagster_leasehold.assets.output.table.catching_up import catch_up
from dagster_leasehold.assets.output.table.reading import EventSpan, TablePlan, plan_table
from dagster_leasehold.assets.output.units import Ended
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error
from dagster_leasehold.lease_store.errors import LeaseholdError, StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.windows import Windows
from dagster_leasehold.lease_store.rules.event_frontier import frontier, lease_times
from dagster_leasehold.lease_store.times import time_text
from dagster_leasehold.lease_store.tracing import span
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.shard_sources.shard_times import unlisted_shards

if TYPE_CHECKING:
    from dagster_leasehold.assets.spark.spark_resource import SparkResource

_LOG = logging.getLogger(__name__)
STALL_CONSEQUENCE = "abandoned the hour, which is unchanged: materialize it again"
ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class WindowResult:
    """The result of a run for a window.

    Attributes:
        source_files: the number of files of committed output that were read.
    """

    window: EventWindow
    source_files: int


def build_window(
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
    warn: Callable[[str], None] = _LOG.warning,
    starved_after_s: float = STARVED_AFTER_S,
) -> WindowResult:
    """Build `[start, end)` of a downstream asset from all output that is committed now.

    `ended` returns True for a run that has certainly ended: its attempts are removed, and its job
    is interrupted. `warn` logs a warning, for example that Spark has run no task for
    `starved_after_s` seconds.

    Raises:
        WindowIncomplete: a shard can still deliver records of the window.
        TableUnavailable: committed output is not published.
        OutputUnreadable: records of the window may have expired. Its output is unchanged.
        TransformError: the transform raised, or returned no DataFrame.
        SparkUnavailable: Spark does not answer.
        RunStalled: Spark made no progress for the stream's `stall_limit_s`.
        RewriteRefused: other runs changed the window during each attempt.
    """
    with (
        span("run", stream.key, job="hour", run=run, asset=asset),
        StallGuard(stream.pace.stall_limit_s, time.monotonic, STALL_CONSEQUENCE) as guard,
        guarded_run(
            spark,
            guard,
            run=run,
            work=f"an hour of stream {stream.name}",
            warn=warn,
            ended=ended,
            starved_after_s=starved_after_s,
        ) as on_spark,
    ):
        build = _WindowBuild(deployment, stream, asset, transform, start, end, run, guard, on_spark)
        if not even_if_incomplete:
            build.check_complete(out_of_order)
        build.clean_up_after(ended)
        return build.run_attempts()


@dataclass(frozen=True, slots=True)
class _WindowBuild:
    """The build of a window in one run.

    The files of an attempt are written into a new folder. Then the row of the window names them
    instead of the old files, if the row has not changed. If it has changed, the files may lack
    records that were counted, and there is another attempt. The store records the attempt before
    its first file. Until the row is written, vacuum keeps these files.
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

    def check_complete(self, out_of_order: timedelta) -> None:
        source = guarded_source(self.stream.source, self.guard)
        leases = self.deployment.store().snapshot(self.stream.key).shards
        unlisted = unlisted_shards(source, leases)
        reached = frontier(lease_times(leases), unlisted=unlisted, out_of_order=out_of_order)
        if reached.until is None or reached.until < self.end:
            raise errors.WindowIncomplete(
                f"The hour {time_text(self.start)} of {self.asset} is not complete "
                f"({reached.clause}): wait for its sensor, or set even_if_incomplete in the config."
            )

    def clean_up_after(self, ended: Ended) -> None:
        """End the attempts of ended runs, and their remaining Spark jobs."""
        store, key = self.deployment.store(), self.stream.key
        for each in store.window_attempts(key):
            if ended(each.run):
                self.on_spark.add_predecessor(each.run)
                store.end_window(key, each.attempt)

    def run_attempts(self) -> WindowResult:
        """Build the window; replace a lost session once."""
        store, key = self.deployment.store(), self.stream.key
        root = owned(store, self.deployment.output_folder(key))
        renewed = False
        for _ in range(ATTEMPTS_MAX):
            windows = store.windows(key, self.asset, since=self.start, until=self.end)
            before = next((window for window in windows if window.start == self.start), None)
            plan, covered = self._planned(root)
            name = attempt_name(self.run)
            attempt = f"{ATTEMPTS_FOLDER}/{name}"
            store.begin_window(key, name, self.run)
            try:
                files = self._files(plan, root, attempt)
            except BaseException as error:
                # If the store does not answer, a later run ends the attempt.
                with suppress(StoreError):
                    store.end_window(key, name)
                # The server may still write into this folder: the next attempt has another one.
                if not renewed and isinstance(error, errors.SessionLost) and self._renewed():
                    renewed = True
                    continue
                raise
            row = self._row(before, files, covered)
            replaced = before.files if before else ()
            touch_replaced(root, replaced)
            if isinstance(store.put_window(key, row, attempt=name), Changed):
                touch_replaced(root, replaced)
                return WindowResult(row, len(plan.files))
            store.end_window(key, name)
            (root / attempt).remove_folder()
        raise errors.RewriteRefused(
            f"Other runs changed the hour {time_text(self.start)} of {self.asset} during each of "
            f"{ATTEMPTS_MAX} attempts of this run, which made no change."
        )

    def _planned(self, root: OutputPlace) -> tuple[TablePlan, dict[ShardId, int]]:
        """Plan a scan of all committed records of the window, once the table shows them.

        Also returns a number for each shard: the plan covers all batches below it. Batches are
        published in order: if the plan has a batch that was published after the cursors were read,
        it also has all earlier batches.
        """
        store, key, catalog = self.deployment.store(), self.stream.key, self.deployment.catalog
        event_span = EventSpan(self.start, self.end)
        catch_up(store, key, root, table=self.stream.iceberg, catalog=catalog)
        numbers = {shard: end for shard, end in (store.published_until(key) or {}).items() if end}
        plan = plan_table(store, key, root, span=event_span, catalog=catalog)
        refuse_expired_times(store, key, self.start, self.end)
        for file in plan.files:
            if file.numbers is not None:
                numbers[file.shard] = max(numbers.get(file.shard, 0), file.numbers.stop)
        return plan, numbers

    def _files(self, plan: TablePlan, root: OutputPlace, attempt: str) -> tuple[DataFile, ...]:
        if not plan.files:
            # Without records there are no columns for the transform.
            return ()
        event_span = EventSpan(self.start, self.end)

        def work() -> tuple[DataFile, ...]:
            return write_window(
                self.on_spark,
                self.stream,
                plan,
                event_span,
                transform=self.transform,
                root=root,
                name=attempt,
            )

        with span("spark"):
            return self.guard.call(lambda: self.on_spark.awaited, work)

    def _renewed(self) -> bool:
        return self.guard.call("Spark", self.on_spark.renew) is not None

    def _row(
        self,
        before: EventWindow | None,
        files: tuple[DataFile, ...],
        covered: Mapping[ShardId, int],
    ) -> EventWindow:
        return EventWindow(
            self.asset,
            self.start,
            self.end,
            version=before.version + 1 if before else 1,
            generation=before.generation + 1 if before else 1,
            run=self.run,
            files=files,
            records=sum(file.records for file in files),
            covered=covered,
            late=before.late if before else 0,
            computed_at=datetime.now(UTC),
        )


def write_window(
    on_spark: RunOnSpark,
    stream: ShardStream,
    plan: TablePlan,
    span: EventSpan,
    *,
    transform: Transform,
    root: OutputPlace,
    name: str,
) -> tuple[DataFile, ...]:
    """Write durable files of a window into the folder of an attempt; return them."""
    from pyspark.sql import DataFrame

    spark, watch = on_spark.open(), on_spark.watch
    watch.progressed()
    (root / ATTEMPTS_FOLDER).make_folder(exist_ok=True)
    folder = root / name
    where = f"The transform of an hour of stream {stream.name}"

    def explain(error: Exception) -> Exception:
        if isinstance(error, LeaseholdError):
            return error
        cause = users_error(error)
        if session_is_gone(error):
            return errors.SessionLost(
                f"Spark does not answer ({cause}): see the Spark server's log, and materialize the "
                "hour again."
            )
        return errors.TransformError(f"{where} failed with {cause}.")

    with explained(watch, folder, explain), watched(spark, watch, folder, by_tasks=True):
        frame = parquet_frame(spark, plan, stream.key, span)
        ship_code_of(transform, spark)
        output = cast(object, transform(frame))
        if isinstance(output, DataFrame):
            return write_frame(output, folder, name)
    raise errors.TransformError(f"{where} returned {type(output).__name__}: return a DataFrame.")


def window_paths(
    store: Windows,
    stream: ShardStream,
    output_root: Output,
    asset: str,
    *,
    hours: Collection[datetime] | None = None,
) -> list[str]:
    """Return the files of an hourly asset for some hours, or for all.

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
