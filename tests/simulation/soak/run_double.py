"""The runs of a deployment: the real code of a run, with doubles for its process and for Spark.

These parts are real: opening, heartbeat, the batch loop, commits, the reports to Dagster, and the
writing of an hour's row. Doubles: the process is a strand of this one; the sweeper names files and
reads chunks of numbers instead of running a Spark job; an hour is written without its records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster import DagsterEvent, DagsterEventType, DagsterRun
from dagster._core.events import StepMaterializationData

from dagster_leasehold.assets import consume_job
from dagster_leasehold.assets.consume_job import ConsumeConfig
from dagster_leasehold.assets.consuming.sweep import Retry, SweepOutcome, SweepResult
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.errors import SweepInterrupted, TransformError
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.partitions import consume_op_name
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.assets.windows.hourly_asset import KEY_FORMAT
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchStatistics, DataFile
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.event_frontier import HOUR
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.lease_store.window_rows import EventWindow
from dagster_leasehold.shard_sources.source import ReadRange
from tests.simulation.soak.synthetic_log import Chunk, SyntheticLog
from tests.simulation.soak.virtual_time import Process, Terminated

if TYPE_CHECKING:
    from tests.simulation.soak.dagster_double import DagsterDouble

SWEEP_S = 2.0
LOOK_S = 1.0
RECORD_BYTES = 100
REFUSED = "The transform of this shard raises, today and for ever."


@dataclass
class Moods:
    """The things that go wrong in runs of a stream, set by the script.

    Attributes:
        failing: shards whose records no transform can read.
        hanging: shards whose next Spark job never returns; the run that meets one takes it away.
        failing_hours: hours whose runs fail while they are in here.
    """

    failing: set[ShardId]
    hanging: set[ShardId]
    failing_hours: Callable[[datetime], bool] = lambda _: False


class SweeperDouble:
    """Stands in for `SparkSweeper`: takes a moment, and names the files that Spark would have
    written.
    """

    def __init__(
        self, deployment: DagsterDouble, run: str, log: SyntheticLog, moods: Moods,
        root: Path, must_stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._deployment = deployment
        self._time = deployment.time
        self._run = run
        self._log = log
        self._moods = moods
        self._root = root
        self._must_stop = must_stop
        self._attempts = 0

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        del numbers
        hanging = {range_.shard for range_ in ranges} & self._moods.hanging
        if hanging:
            self._moods.hanging -= hanging
            self._hang()
        self._time.sleep(SWEEP_S)
        self._attempts += 1
        return {range_.shard: self._result(range_) for range_ in ranges}

    def retry(self, each: Retry, guard: StallGuard) -> SweepResult:
        """Make one batch beside the others; a hang ends when its guard gives it up."""
        own = copy(self)
        own._must_stop = lambda: guard.ending or self._must_stop()
        return own([each.range_], {each.range_.shard: each.numbers})[each.range_.shard]

    def _hang(self) -> None:
        """Play a Spark job without end, which asks for its interruption as the real one does."""
        while not self._must_stop():
            self._time.sleep(LOOK_S)
        raise SweepInterrupted("The Spark job was interrupted.")

    def _result(self, range_: ReadRange) -> SweepResult:
        if range_.shard in self._moods.failing:
            return TransformError(REFUSED)
        chunks = self._log.chunks_of(range_)
        records = int(range_.end) - int(range_.start)
        times = [chunk.event_time for chunk in chunks]
        first, last = (min(times), max(times)) if times else (None, None)
        attempt = f"attempts/{self._run}-{self._attempts}"
        path = f"{attempt}/{range_.shard}.parquet"
        file = DataFile(
            path, records, records * RECORD_BYTES, first_event_time=first, last_event_time=last
        )
        if any(chunk.late for chunk in chunks):
            # Only files with late records are ever opened, according to the ledger.
            _write(self._root / path, range_.shard, chunks)
        statistics = BatchStatistics(records, records * RECORD_BYTES, records, 0, first, last)
        return SweepOutcome(attempt, (file,), statistics)


def _write(path: Path, shard: ShardId, chunks: Sequence[Chunk]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = [chunk.event_time for chunk in chunks for _ in range(chunk.start, chunk.end)]
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {
        "shard_id": pa.array([shard] * len(times), pa.string()),
        "event_time": pa.array(times, pa.timestamp("us", tz="UTC")),
    }
    pq.write_table(pa.table(columns), path)


class _RunContext:
    """The things that a run's code asks of Dagster: its resources, a silent log and the like."""

    def __init__(
        self, instance: dg.DagsterInstance, run: DagsterRun, deployment: Deployment
    ) -> None:
        self.instance = instance
        self.run = run
        self.resources = SimpleNamespace(**{LEASEHOLD: deployment})
        self.log = _Silence()

    def log_event(self, event: object) -> None:
        if not isinstance(event, dg.AssetMaterialization):
            return
        self.instance.report_dagster_event(
            DagsterEvent(
                event_type_value=DagsterEventType.ASSET_MATERIALIZATION.value,
                job_name=self.run.job_name,
                event_specific_data=StepMaterializationData(event),
            ),
            run_id=self.run.run_id,
        )


class _Silence:
    def info(self, message: str) -> None:
        """Drop the message."""

    warning = error = debug = info


@dataclass(eq=False)
class RunDouble:
    """One run of a deployment at work on a strand."""

    deployment: DagsterDouble
    run: DagsterRun
    stream: str
    process: Process

    def work(self) -> None:
        """Do the work of the run, and report its end to Dagster."""
        instance = self.deployment.instance
        try:
            failure = self._do()
        except Terminated:
            failure = "This run was terminated."
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self.process.dead = True
        self.deployment.run_ended(self, failure)
        run = instance.get_run_by_id(self.run.run_id)
        if run is None or run.is_finished:
            return
        kind = DagsterEventType.RUN_FAILURE if failure else DagsterEventType.RUN_SUCCESS
        # Only the run's status: its events are not read, and storing them takes most of the time.
        instance.run_storage.handle_run_event(
            run.run_id, DagsterEvent(kind.value, run.job_name, message=failure), utc_now()
        )

    def _do(self) -> str:
        hour = self.run.tags.get("dagster/partition")
        return self._consume() if hour is None else self._make_hour(hour)

    def _consume(self) -> str:
        place = self.deployment.streams[self.stream]
        ops: Any = self.run.run_config["ops"]
        config = ConsumeConfig(**ops[consume_op_name(place.stream)]["config"])
        own = self._own_deployment()
        context: Any = _RunContext(self.deployment.instance, self.run, own)
        try:
            consume_job._consume(context, config, place.stream)
        except (dg.Failure, LeaseholdError) as error:
            return str(getattr(error, "description", "") or error)
        return ""

    def _own_deployment(self) -> Deployment:
        """Return the deployment's settings, with this process's own connection to the store."""
        connection = self.deployment.world.store.connect(self.process)
        settings = self.deployment.streams[self.stream].deployment
        unused = SparkResource(mode="local[1]", folder=str(self.deployment.folder))
        return replace(settings, store=lambda: connection, spark=unused)

    def _make_hour(self, partition: str) -> str:
        start = datetime.strptime(partition, KEY_FORMAT).replace(tzinfo=UTC)
        self.deployment.world.watch.hours.failed.add(start)
        failure = self._write_hour(partition, start)
        if not failure:
            self.deployment.world.watch.hours.failed.discard(start)
        return failure

    def _write_hour(self, partition: str, start: datetime) -> str:
        """Write the row of an hour as `build_window` does; its output is of no interest here."""
        place = self.deployment.streams[self.stream]
        self.deployment.time.sleep(SWEEP_S)
        if self.deployment.world.moods(self.stream).failing_hours(start):
            return f"The transform of the hour {partition} raised."
        store: Any = self.deployment.world.store.connect(self.process)
        hourly = self.deployment.hourly
        assert hourly is not None
        key = place.stream.key
        rows = store.windows(key, hourly.name, since=start, until=start + HOUR)
        former = next((row for row in rows if row.start == start), None)
        window = EventWindow(
            hourly.name,
            start,
            start + HOUR,
            version=former.version + 1 if former else 1,
            generation=former.generation + 1 if former else 1,
            run=self.run.run_id,
            covered=dict(self.deployment.world.watch.next_numbers(key)),
            late=former.late if former else 0,
        )
        return "" if isinstance(store.put_window(key, window), Changed) else "Somebody was faster."
