"""Clusters whose workers have Python, PySpark and pyarrow alone: the code comes with the run."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.kafka import KafkaOptions, KafkaSource
from dagster_leasehold.shard_sources.source import Limits
from tests.integration.assets.runs import (
    PROJECT,
    RECORDS,
    claim_all,
    consume_stream,
    new_home,
    store_of,
    stream_of,
)
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored
from tests.ledger_output import ledger_records
from tests.own_environments import PackagesMissing
from tests.spark_clusters import (
    bare_connect_server,
    bare_environment,
    bare_python,
    spark_class,
    standalone_cluster,
)
from tests.unit.docs.test_docs import DOCS, fences

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.timeout(1200)]
RUN_S = 600.0
TOPIC = "orders"
KEY = GroupKey.parse("default", "orders")
TRANSFORMS = """
import pyarrow as pa
from dagster_leasehold import arrow_transform
from pyspark.sql.functions import arrow_udf


@arrow_transform
def arrow(table):
    from shop.prices import PRICE

    return table.append_column("price", pa.array([PRICE] * table.num_rows))


@arrow_transform
def libraries(table):
    import msgspec, numpy

    names = f"{msgspec.__name__} {numpy.__name__}"
    return table.append_column("price", pa.array([names] * table.num_rows))


def frames(rows):
    @arrow_udf("string")
    def price(values: pa.Array) -> pa.Array:
        from shop.prices import PRICE

        return pa.array([PRICE] * len(values))

    return rows.withColumn("price", price(rows.value))
"""


def write_project(folder: Path, price: str) -> Path:
    """Write the user's project, or a new version of it: a transform and a module that it uses."""
    package = folder / "shop"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "transforms.py").write_text(TRANSFORMS)
    (package / "prices.py").write_text(f"PRICE = {price!r}\n")
    return folder


@pytest.fixture(params=["standalone", "connect"])
def spark(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a Spark whose workers are bare."""
    try:
        python = bare_python()
    except PackagesMissing as missing:
        pytest.skip(str(missing))
    server: AbstractContextManager[str]
    if request.param == "connect":
        server = bare_connect_server(tmp_path)
    else:
        environment = bare_environment(tmp_path)
        server = standalone_cluster(tmp_path, environment, spark_class(python), 2)
    with server as address:
        yield address


@pytest.fixture(scope="session")
def environment_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with libraries that bare workers lack, packed as the page says."""
    folder = tmp_path_factory.mktemp("packed")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    [block] = fences(DOCS / "how-to/spark.md", "console")
    for line in block.splitlines():
        command = shlex.split(line.removeprefix("$ "))
        done = subprocess.run(
            command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, check=False
        )
        if done.returncode and "install" in command:
            pytest.skip(f"pip could not install what {line} names")
        assert done.returncode == 0, done.stderr[-2000:]
    return folder / "environment.tar.gz"


def start_run(
    home: Path, project: Path, spark: str, way: str, run: str, archive: str = ""
) -> subprocess.Popen[str]:
    """Start a run over all shards, as a process that has the user's project on its path."""
    path = os.pathsep.join([str(project), str(PROJECT)])
    variables = {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(home), str(home / "spark"), spark, way, run, archive],
        cwd=PROJECT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*runs: subprocess.Popen[str]) -> None:
    for run in runs:
        output, _ = run.communicate(timeout=RUN_S)
        assert run.returncode == 0, output[-6000:]


def committed(home: Path) -> dict[str, list[tuple[bytes, str | None]]]:
    """Return the values and prices that were committed, by shard."""
    rows: dict[str, list[tuple[bytes, str | None]]] = {}
    for batch in ledger_records(store_of(home), KEY, home / "output"):
        for row in batch.to_pylist():
            rows.setdefault(row["shard_id"], []).append((row["value"], row.get("price")))
    assert verify(store_of(home), KEY) == []
    return rows


def expected(*prices: str | None) -> dict[str, list[tuple[bytes, str | None]]]:
    first, *later = prices
    return {
        shard: [
            *((b"%s:%d" % (shard.encode(), n), first) for n in range(RECORDS)),
            *((b"more", price) for price in later),
        ]
        for shard in "012"
    }


def append(*homes: Path) -> None:
    for home in homes:
        for shard in "012":
            stream_of(home).source.append(ShardId(shard), [b"more"])


def test_each_deployment_sends_and_updates_its_own_code(spark: str, tmp_path: Path) -> None:
    """Goal: bare workers do every kind of job, with the code that this deployment has now."""
    homes = [new_home(folder) for folder in (tmp_path / "a", tmp_path / "b")]
    projects = [
        write_project(tmp_path / f"project-{number}", price)
        for number, price in enumerate(["cheap", "dear"])
    ]
    a, b = homes
    finish(start_run(a, projects[0], spark, "none", "run-1"))
    assert committed(a) == expected(None)
    append(a)
    # Both deployments at once: their modules bear the same names and are not the same.
    both = zip(homes, projects, strict=True)
    finish(*(start_run(home, project, spark, "arrow", "run-2") for home, project in both))
    assert committed(a) == expected(None, "cheap")
    assert committed(b) == expected("dear")
    append(*homes)
    write_project(projects[0], "cheaper")
    both = zip(homes, projects, strict=True)
    finish(*(start_run(home, project, spark, "frames", "run-3") for home, project in both))
    assert committed(a) == expected(None, "cheap", "cheaper")
    assert committed(b) == expected("dear", "dear")


def test_libraries_travel_in_an_environment(
    spark: str, tmp_path: Path, environment_archive: Path
) -> None:
    home, project = new_home(tmp_path / "a"), write_project(tmp_path / "project", "cheap")
    finish(start_run(home, project, spark, "libraries", "run-1", str(environment_archive)))
    assert committed(home) == expected("msgspec numpy")
    append(home)
    finish(start_run(home, project, spark, "frames", "run-2", str(environment_archive)))
    assert committed(home) == expected("msgspec numpy", "cheap")


def test_a_client_library_travels_in_the_environment(
    spark: str, tmp_path: Path, environment_archive: Path
) -> None:
    """Goal: workers without the client of Kafka read a topic."""
    home = tmp_path / "a"
    home.mkdir()
    with KafkaBroker() as broker:
        partitions = [Partition() for _ in "012"]
        broker.topics[TOPIC] = partitions
        for number, partition in enumerate(partitions):
            partition.append(Stored(0, 0, b"%d:%d" % (number, n)) for n in range(RECORDS))
        claim_all(topic_stream(broker.address), home)
        way = f"topic at {broker.address}"
        finish(start_run(home, tmp_path, spark, way, "run-1", str(environment_archive)))
    assert committed(home) == expected(None)


def topic_stream(address: str) -> ShardStream:
    """Return a stream with the name and group of the others and Kafka as its source."""
    source = KafkaSource(KafkaOptions(bootstrap_servers=address, topic=TOPIC), TOPIC)
    return ShardStream(name="orders", source=source, limits=Limits(records_max=12))


def main(home: Path, folder: Path, spark: str, way: str, run: str, archive: str) -> None:
    # A run's own Python is not the workers'. Two applications share the cluster.
    conf = {"spark.sql.execution.pyspark.python": str(bare_python()), "spark.cores.max": "1"}
    if spark.startswith("sc://") or archive:
        conf = {}
    if archive:
        own = SparkResource(mode=spark, folder=str(folder), environment_archive=archive)
        assert own.spark_session is not None, "the runs of this process have this session"
    if way.startswith("topic at "):
        stream = topic_stream(way.removeprefix("topic at "))
    else:
        named = way != "none"
        transform = getattr(importlib.import_module("shop.transforms"), way) if named else None
        stream = stream_of(home, transform)
    consume_stream(stream, home, folder, run, mode=spark, conf=conf)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
