"""One Spark job of a sweep: read, transform, write, and explain a failure in our own words."""

from __future__ import annotations

import shutil
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dagster_leasehold.assets.arrow_transform import (
    ERROR_COLUMN,
    QUARANTINE_COLUMNS,
    SHARD_COLUMN,
    ArrowTransform,
)
from dagster_leasehold.assets.consuming.sweep import SweepOutcome
from dagster_leasehold.assets.errors import SparkUnavailable, SweepInterrupted, TransformError
from dagster_leasehold.assets.output import attempt_reports
from dagster_leasehold.assets.output.attempts import ATTEMPTS_FOLDER
from dagster_leasehold.assets.output.transform_mark import name_of
from dagster_leasehold.assets.shard_stream import Transform
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.durable_files import make_folder
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.failpoints import Failpoint
from dagster_leasehold.lease_store.identifiers import ShardId, StreamName
from dagster_leasehold.lease_store.ledger_rows import BatchStatistics
from dagster_leasehold.shard_sources.source import ReadRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

WATCH_S = 0.25
REGISTER_ATTEMPTS = 10


@dataclass(frozen=True)
class SweepJob:
    """The parts of a sweep that are the same for all its jobs.

    Attributes:
        stream: the stream's name, for messages.
        source_options: the options from which a worker builds the reader.
        transform: the user's, or None to keep records as they are.
        output_root: the folder of the stream's output, which Spark's workers reach too.
        new_attempt: gives a name that was never used, for the folder of one try.
        tag: marks the jobs of this run, so that they can be interrupted.
        tasks_max: the most tasks a job is cut into.
        doomed: asked while a job runs; once it is true, the job is interrupted.
        progressed: called while a job makes progress, and when one begins.
    """

    stream: StreamName
    source_options: Mapping[str, str]
    transform: Transform | ArrowTransform | None
    output_root: Path
    new_attempt: Callable[[], str]
    tag: str
    tasks_max: int
    doomed: Callable[[], bool] = lambda: False
    progressed: Callable[[], None] = lambda: None


class JobFailed(Exception):
    """A job failed and no worker named the shard."""

    def __init__(self, error: LeaseholdError) -> None:
        super().__init__(str(error))
        self.error = error


class ShardsFailed(Exception):
    """A job failed for these shards."""

    def __init__(self, errors: Mapping[ShardId, LeaseholdError]) -> None:
        super().__init__(", ".join(errors))
        self.errors = errors


def make_attempt(
    spark: SparkSession, job: SweepJob, ranges: Sequence[ReadRange]
) -> dict[ShardId, SweepOutcome]:
    """Run one Spark job for these ranges, into a folder of its own.

    Raises:
        ShardsFailed: workers named the shards that failed.
        JobFailed: the job failed, and no worker named a shard.
        SparkUnavailable: Spark went away.
        SweepInterrupted: `job.doomed` became true.
        TransformError: the transform cannot be applied to any shard.
    """
    from dagster_leasehold.assets.output.parquet_sink import FORMAT, write_options

    attempt = f"{ATTEMPTS_FOLDER}/{job.new_attempt()}"
    folder = job.output_root / attempt
    make_folder(folder)
    job.progressed()
    shards = [range_.shard for range_ in ranges]
    try:
        output = _transformed(_read(spark, job, ranges, folder), job)
    except LeaseholdError:
        folder.rmdir()
        raise
    try:
        with _interruptible(spark, job, folder), _failpoint_during_write(folder):
            writer = output.write.format(FORMAT).mode("append")
            options = write_options(shards, folder, name_of(job.transform))
            writer.options(**options).save()
    except Exception as error:
        if job.doomed():
            raise SweepInterrupted(
                f"The Spark job of stream {job.stream} was interrupted: this run no longer "
                "holds its leases for certain, or it is ending."
            ) from error
        failure = _explain(error, folder, job, shards)
        if not isinstance(failure, SparkUnavailable):
            # Spark has ended the job. Where it has not, somebody may still write into the folder.
            shutil.rmtree(folder, ignore_errors=True)
        raise failure from error
    outcomes = _outcomes(folder, attempt, shards)
    attempt_reports.remove_reports(folder)
    if not any(outcome.files for outcome in outcomes.values()):
        folder.rmdir()
    return outcomes


def _read(
    spark: SparkSession, job: SweepJob, ranges: Sequence[ReadRange], folder: Path
) -> DataFrame:
    from dagster_leasehold.assets.consuming.shard_data_source import FORMAT, read_options

    try:
        _register(spark)
        options = read_options(job.source_options, ranges, job.tasks_max, folder)
        return spark.read.format(FORMAT).options(**options).load()
    except Exception as error:
        raise _unavailable(error) from error


_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def _register(spark: SparkSession) -> None:
    """Tell a session of the source and the sink, once."""
    from dagster_leasehold.assets.consuming.shard_data_source import ShardDataSource
    from dagster_leasehold.assets.output.parquet_sink import ShardFilesSink

    if spark not in _registered:
        _register_one(spark, ShardDataSource)
        _register_one(spark, ShardFilesSink)
        _registered.add(spark)


def _register_one(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source under its name, replacing an earlier one.

    Runs share a session, and in a new one these two can meet:
    1. Run A and run B register at the same moment.
    2. A's registration counts; B is refused as if the name could not be replaced.
    3. B tries again and replaces A's, which is the same.
    """
    from pyspark.errors import AnalysisException

    for attempts_left in reversed(range(REGISTER_ATTEMPTS)):
        try:
            spark.dataSource.register(source)
            return
        except AnalysisException as error:
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(error) or not attempts_left:
                raise


def _transformed(records: DataFrame, job: SweepJob) -> DataFrame:
    """Return the output of the user's transform, checked before anything is read.

    Raises:
        TransformError: it raised, or its output cannot be committed.
    """
    from pyspark.sql import DataFrame

    where = f"The transform of stream {job.stream}"
    if job.transform is None:
        return records
    if isinstance(job.transform, ArrowTransform):
        raise TransformError(f"{where} takes Arrow tables, and this job hands it a DataFrame.")
    ship_code_of(job.transform)
    try:
        output = cast(object, job.transform(records))
        # Spark checks column names only when it is asked for them.
        types = dict(output.dtypes) if isinstance(output, DataFrame) else {}
    except Exception as error:
        if session_is_gone(error):
            raise _unavailable(error) from error
        raise TransformError(f"{where} raised {users_error(error)}.") from error
    if not isinstance(output, DataFrame):
        raise TransformError(
            f"{where} returned {type(output).__name__}: return the DataFrame to write."
        )
    if types.get(SHARD_COLUMN) != "string":
        raise TransformError(
            f"{where} dropped or changed the column {SHARD_COLUMN}: keep it, since output is "
            "written and committed shard by shard."
        )
    missing = [name for name in QUARANTINE_COLUMNS if name not in types]
    if ERROR_COLUMN in types and missing:
        raise TransformError(
            f"{where} returns {ERROR_COLUMN} without {', '.join(missing)}: keep these columns, "
            "which quarantined records are stored with."
        )
    return output


@contextmanager
def _interruptible(spark: SparkSession, job: SweepJob, folder: Path) -> Generator[None]:
    """Tag the work inside, and interrupt it when the lease is lost or this process is to end.

    Killing a client does not stop its job on a Connect server, so leaving early must say so.
    """
    done = threading.Event()

    def watch() -> None:
        signs = attempt_reports.signs_of_work(folder)
        while not done.wait(WATCH_S):
            if job.doomed():
                spark.interruptTag(job.tag)
            elif (now := attempt_reports.signs_of_work(folder)) != signs:
                signs = now
                job.progressed()

    watcher = threading.Thread(target=watch, name=f"watch {job.tag}", daemon=True)
    spark.addTag(job.tag)
    watcher.start()
    try:
        yield
    except Exception:
        raise
    except BaseException:
        # This process is on its way out, even if Spark does not hear of it any more.
        with suppress(Exception):
            spark.interruptTag(job.tag)
        raise
    finally:
        done.set()
        watcher.join()
        spark.removeTag(job.tag)


@contextmanager
def _failpoint_during_write(folder: Path) -> Generator[None]:
    if not failpoints.armed(Failpoint.DURING_WRITE):
        yield
        return

    def await_first_file() -> None:
        while not any(folder.glob("*.parquet")):
            time.sleep(0.001)
        failpoints.reach(Failpoint.DURING_WRITE)

    threading.Thread(target=await_first_file, daemon=True).start()
    yield
    failpoints.reach(Failpoint.DURING_WRITE)


def _explain(error: Exception, folder: Path, job: SweepJob, shards: Sequence[ShardId]) -> Exception:
    """Return the failure of a job in our own words, for the shards that it concerns."""
    if session_is_gone(error):
        return _unavailable(error)
    failures = attempt_reports.failures(folder)
    named = {failure.shard: failure.error for failure in failures if failure.shard is not None}
    if named:
        return ShardsFailed(named)
    if failures:
        return JobFailed(failures[0].error)
    whose = f"shard {shards[0]} of stream {job.stream}" if len(shards) == 1 else job.stream
    return JobFailed(TransformError(f"The Spark job for {whose} failed with {users_error(error)}."))


def _unavailable(error: Exception) -> SparkUnavailable:
    return SparkUnavailable(
        f"Spark does not answer ({users_error(error)}): see the Spark server's log; the next run "
        "starts again where this one stopped."
    )


def _outcomes(folder: Path, attempt: str, shards: Sequence[ShardId]) -> dict[ShardId, SweepOutcome]:
    files = attempt_reports.written_files(folder)
    if files is None:
        raise SparkUnavailable(
            f"Spark reported that it wrote {attempt} but left no report in {folder}: let Spark's "
            "workers and this process share the output folder."
        )
    read = attempt_reports.read_statistics(folder)
    outcomes: dict[ShardId, SweepOutcome] = {}
    for shard in shards:
        own = [file for file in files if file.shard == shard]
        seen = read.get(shard)
        statistics = BatchStatistics(
            records=seen.records if seen else None,
            bytes=seen.bytes if seen else None,
            written=sum(file.records for file in own if not file.quarantine),
            quarantined=sum(file.records for file in own if file.quarantine),
            first_event_time=seen.first_event_time if seen else None,
            last_event_time=seen.last_event_time if seen else None,
        )
        names = tuple(file.data_file(attempt) for file in sorted(own, key=lambda file: file.path))
        outcomes[shard] = SweepOutcome(attempt, names, statistics)
    return outcomes
