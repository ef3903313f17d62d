"""One run of a window of event time: read, transform, write, and swap the files in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dagster_leasehold.assets import errors
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER, attempt_name, touch_replaced
from dagster_leasehold.assets.output.committed_output import parquet_frame
from dagster_leasehold.assets.output.expired_output import refuse_expired_times
from dagster_leasehold.assets.output.store_frames import write_frame
from dagster_leasehold.assets.output.table.catching_up import catch_up
from dagster_leasehold.assets.output.table.reading import EventSpan, TablePlan, plan_table
from dagster_leasehold.assets.output.units import Ended
from dagster_leasehold.assets.places.address import Output, output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error
from dagster_leasehold.assets.windows.event_frontier import ShardTime, frontier
from dagster_leasehold.lease_store.durable_files import sync_file, sync_folder
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.roles.windows import EventWindow, Windows
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.times import time_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    3. the lease tables show shard 0 as finished, and its children not yet: nobody seems to hold.

    In this order, whoever sees a parent finished sees its children listed.

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
    catch_up(store, key, root, table=stream.table, catalog=deployment.catalog)
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
    session: Callable[[], SparkSession],
    renewed: Callable[[], SparkSession | None] = lambda: None,
    out_of_order: timedelta = timedelta(0),
    even_if_incomplete: bool = False,
    ended: Ended = lambda _: False,
) -> WindowMade:
    """Make `[start, end)` of a downstream asset from all that is committed now.

    The files are written into a folder that belongs to this attempt alone; the window's row then
    names them in the place of the old ones, if nobody wrote the row meanwhile. Else the files may
    lack records that somebody counted in, and are made again. The attempt is in the store before
    its first file, and ends with the write of the row: vacuum leaves its files alone until then.
    `ended` returns True for a run that has certainly ended: its attempts are then forgotten.
    `renewed` gives another session, once, in place of one that is gone, or None.

    Raises:
        WindowIncomplete: a shard may still deliver records of the window.
        TableUnavailable: what is committed is not published.
        OutputUnreadable: records of the window may have expired: what was made of it stays.
        TransformError: the transform raised, or returned no DataFrame.
        SparkUnavailable: Spark does not answer.
        RewriteRefused: other runs of the window were faster each time.
    """
    store, root = deployment.store(), deployment.output_folder(stream.key)
    if not even_if_incomplete:
        _check_complete(store, stream, asset=asset, start=start, end=end, out_of_order=out_of_order)
    _forget_ended(store, stream, ended)
    spark: SparkSession | None = None
    for _ in range(TRIES_MAX):
        before = _window_made(store, stream, asset=asset, start=start, end=end)
        span = EventSpan(start, end)
        plan, covered = _planned(deployment, stream, span)
        name = attempt_name(run)
        attempt = f"{ATTEMPTS_FOLDER}/{name}"
        files: tuple[DataFile, ...] = ()
        store.begin_window(stream.key, name, run)
        try:
            if plan.files:
                # An hour without records has no columns either that a transform could work on.
                work = (spark or session(), stream, plan, span)
                files = _make_files(*work, transform=transform, root=root, name=attempt)
        except BaseException as error:
            # A store that does not answer keeps the attempt until a later run finds this one ended.
            with suppress(StoreError):
                store.end_window(stream.key, name)
            # The server may still write into this attempt's folder: the next one has its own.
            if spark is None and isinstance(error, errors.SessionLost) and (spark := renewed()):
                continue
            raise
        window = _window_row(before, asset, start, end, run=run, files=files, covered=covered)
        replaced = before.files if before else ()
        touch_replaced(root, replaced)
        if isinstance(store.put_window(stream.key, window, attempt=name), Changed):
            touch_replaced(root, replaced)
            return WindowMade(window, len(plan.files))
        store.end_window(stream.key, name)
        (root / attempt).remove_folder()
    raise errors.RewriteRefused(
        f"The hour {time_text(start)} of {asset} changed {TRIES_MAX} times while this run made "
        "it: it stays as the others left it."
    )


def _forget_ended(store: Windows, stream: ShardStream, ended: Ended) -> None:
    for each in store.window_attempts(stream.key):
        if ended(each.run):
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


def _make_files(
    spark: SparkSession,
    stream: ShardStream,
    plan: TablePlan,
    span: EventSpan,
    *,
    transform: Transform,
    root: OutputPlace,
    name: str,
) -> tuple[DataFile, ...]:
    (root / ATTEMPTS_FOLDER).make_folder(exist_ok=True)
    written = _write(spark, stream, plan, span=span, transform=transform, root=root, name=name)
    return _files(root, name) if written is None else written


def _write(
    spark: SparkSession,
    stream: ShardStream,
    plan: TablePlan,
    span: EventSpan,
    *,
    transform: Transform,
    root: OutputPlace,
    name: str,
) -> tuple[DataFile, ...] | None:
    """Write the output of an hour; return its files, or None where Spark wrote them on a disk."""
    from pyspark.sql import DataFrame

    folder = root / name
    where = f"The transform of an hour of stream {stream.name}"
    frame = parquet_frame(spark, plan, stream.key, span)
    ship_code_of(transform, spark)
    try:
        output = cast(object, transform(frame))
        if isinstance(output, DataFrame):
            if not folder.is_local:
                return write_frame(output, folder, name)
            output.write.parquet(str(folder))
            return None
    except Exception as error:
        folder.remove_folder()
        if session_is_gone(error):
            raise errors.SessionLost(
                f"Spark does not answer ({users_error(error)}): see the Spark server's log; "
                "materialize the hour again."
            ) from error
        raise errors.TransformError(f"{where} failed with {users_error(error)}.") from error
    raise errors.TransformError(f"{where} returned {type(output).__name__}: return a DataFrame.")


def _files(output_root: OutputPlace, attempt: str) -> tuple[DataFile, ...]:
    """Return the files that Spark wrote, durable before a row names them."""
    import pyarrow.parquet as pq

    root = Path(str(output_root))
    paths = sorted((root / attempt).glob("*.parquet"))
    if not paths:
        raise errors.SparkUnavailable(
            f"Spark reported that it wrote {attempt} but left no file in {root / attempt}: let "
            "Spark's workers and this process share the output folder."
        )
    for path in paths:
        with path.open("rb") as file:
            sync_file(file)
    sync_folder(root / attempt)
    # Spark made the folder of the attempt itself.
    sync_folder(root / ATTEMPTS_FOLDER)
    return tuple(
        DataFile(f"{attempt}/{path.name}", pq.read_metadata(path).num_rows, path.stat().st_size)
        for path in paths
    )


def window_paths(
    store: Windows,
    stream: ShardStream,
    output_root: Output,
    asset: str,
    *,
    hours: Collection[datetime] | None = None,
) -> list[str]:
    """Return the files of a downstream asset's output by hour, of some hours or of all."""
    folder = output_place(output_root)
    return [
        str(folder / file.path)
        for window in store.windows(stream.key, asset)
        if hours is None or window.start in hours
        for file in window.files
    ]
