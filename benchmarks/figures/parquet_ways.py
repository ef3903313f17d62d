"""Each way from the throughput benchmark's input to a folder of Parquet: ours and its rivals."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures.parquet_input import (
    FIELDS,
    LINES,
    LOG,
    PARQUET,
    PORTION,
    make_input,
    plain_python,
    rows_in,
)
from benchmarks.figures.process_tree import MEBIBYTE, peak_memory
from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.parsing import parse_json
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.shard_sources.local_log import LocalLog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NODE = NodeName("a")
Way = Callable[[Path], None]

OURS, OURS_FRAME, OURS_ARROW = "leasehold", "leasehold parse_json", "leasehold arrow parse_json"
NATIVE, NATIVE_PARSING, NATIVE_JSON = "parquet", "parquet from_json", "json lines"
STREAMING, PYTHON = "streaming", "python"


def parse_frame(records: DataFrame) -> DataFrame:
    """Parse the six fields by Spark's functions."""
    return parse_json(records, FIELDS)


@arrow_transform
def parse_table(records: pa.Table) -> pa.Table:
    """Parse the six fields in Arrow, in the worker that reads them."""
    return parse_json(records, FIELDS)


def consume(
    folder: Path,
    spark: SparkResource,
    output: Path,
    transform: Any = None,
    place: OutputPlace | None = None,
) -> None:
    """Consume the whole log in one run, as a Dagster run does; files go to `place` if given."""
    log = LocalLog.open(folder / LOG)
    stream = ShardStream(name="bench", source=log, transform=transform)
    store = open_store(f"sqlite:///{output / 'leases.db'}")
    store.create_group(stream.new_group(20.0))
    store.register(stream.key, Node(NODE, 0, "a-1"), observer="benchmark")
    store.sync_shards(stream.key, log.list_shards(), observer="benchmark")
    claims = {lease.shard: (NODE, lease.lease_id) for lease in store.snapshot(stream.key).shards}
    store.claim(stream.key, claims, observer="benchmark", reason="set up")
    with Member(store, stream.key, Node(NODE, 0, "a-1")) as heartbeat:
        consumer = Consumer(
            stream=stream,
            store=store,
            node=NODE,
            run="benchmark",
            sweeper=SparkSweeper(
                stream=stream,
                spark=RunOnSpark(
                    session=lambda: spark.spark_session, run="benchmark", work="the benchmark"
                ),
                output_root=place or local_place(output),
            ),
            heartbeat=heartbeat,
            clock=time.monotonic,
            budget_s=24 * 3600.0,
        )
        reports = consumer.consume([ShardId(shard) for shard in claims])
    store.close()
    for report in reports.values():
        if report.stopped is not StopReason.CAUGHT_UP or report.quarantined:
            raise RuntimeError(
                f"shard {report.shard} stopped: {report.stopped}, {report.quarantined} "
                f"quarantined, {report.error}"
            )


def ways(folder: Path, spark: SparkResource) -> dict[str, Way]:
    """Return each way by its name."""
    from pyspark.sql import functions

    session: Any = spark.spark_session

    def rewritten(read: Callable[[str], Any], name: str) -> Way:
        return lambda output: read(str(folder / name)).write.parquet(str(output / "rows"))

    def parsed(path: str) -> Any:
        text = functions.col("value").cast("string")
        rows = session.read.parquet(path).withColumn("fields", functions.from_json(text, FIELDS))
        return rows.select("*", "fields.*").drop("fields")

    def streamed(output: Path) -> None:
        source = str(folder / PARQUET)
        rows = session.readStream.schema(session.read.parquet(source).schema).parquet(source)
        query = (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(output / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(output / "rows"))
        )
        query.awaitTermination()

    return {
        OURS: lambda output: consume(folder, spark, output),
        NATIVE: rewritten(session.read.parquet, PARQUET),
        NATIVE_JSON: rewritten(session.read.schema(FIELDS).json, LINES),
        PYTHON: lambda output: plain_python(LocalLog.open(folder / LOG), output),
        STREAMING: streamed,
        OURS_FRAME: lambda output: consume(folder, spark, output, parse_frame),
        OURS_ARROW: lambda output: consume(folder, spark, output, parse_table),
        NATIVE_PARSING: rewritten(parsed, PARQUET),
    }


def spark_folder(cores: int) -> str:
    """Return the name of the folder of a worker's Spark."""
    return f"spark-{cores}"


class Worker:
    """A process with a Spark of its own; both may use no more than some of the cores."""

    def __init__(self, cores: int, folder: Path) -> None:
        self._folder = folder / spark_folder(cores)
        self._spark = SparkResource(mode="connect", folder=str(self._folder))

    def warm_up(self, names: Collection[str]) -> dict[str, str]:
        """Run each of these ways once: a new Spark waits for compilers and Python workers.

        Returns:
            The error of each way that failed.
        """
        folder = self._folder / "warm"
        make_input(folder, PORTION, 2)
        failed: dict[str, str] = {}
        for name in names:
            try:
                self.run(folder, name, PORTION)
            except Exception as error:
                failed[name] = str(error)
        return failed

    def run(self, folder: Path, name: str, records: int) -> tuple[float, float]:
        """Return seconds and MiB of one way into a new folder, which is removed afterwards.

        Raises:
            RuntimeError: the way has written another number of rows.
        """
        output = self._folder / "output"
        output.mkdir()
        try:
            way = ways(folder, self._spark)[name]
            with peak_memory(self._server) as peak:
                began = time.perf_counter()
                way(output)
                seconds = time.perf_counter() - began
            if (rows := rows_in(output)) != records:
                raise RuntimeError(f"{name} has written {rows:,} of {records:,} records")
            return seconds, peak[0] / MEBIBYTE
        finally:
            shutil.rmtree(output, ignore_errors=True)

    def _server(self) -> list[int]:
        server = connect_server.running(self._folder)
        return [] if server is None else [server.pid]
