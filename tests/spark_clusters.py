"""External Spark: a standalone cluster, and a separate Connect server."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from dagster_leasehold.assets.spark.spark_session import server_conf, spark_environment
from dagster_leasehold.assets.spark.spark_versions import version_here
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from tests.dagster_deployment import port_open
from tests.own_environments import own_environment
from tests.ports import free_port
from tests.spark_iceberg import without_spark_connect
from tests.waiting import wait_for

START_S = 300.0
OF_THIS_PYTHON = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_PYTHON")


def bare_python() -> Path:
    """Return a Python that has only PySpark and pyarrow.

    Raises:
        PackagesMissing: they cannot be installed here.
    """
    spark = version_here()
    packages = (f"pyspark=={spark}", f"pyarrow=={pa.__version__}")
    return own_environment(f"bare-worker-{spark}", packages) / "python"


def bare_environment(folder: Path) -> dict[str, str]:
    """Return the environment of Spark's processes on a host that has the bare Python alone."""
    own = without_spark_connect()
    for name in OF_THIS_PYTHON:
        own.pop(name, None)
    java = spark_environment(folder, own)["JAVA_HOME"]
    return own | {"JAVA_HOME": java, "PYSPARK_PYTHON": str(bare_python())}


def _programs(python: Path) -> Path:
    """Return the folder with the programs of Spark in the environment of a Python."""
    [packages] = python.parents[1].glob("lib/python*/site-packages")
    return packages / "pyspark" / "bin"


def spark_class(python: Path) -> Path:
    """Return the program that starts a class of Spark."""
    return _programs(python) / "spark-class"


@contextmanager
def standalone_cluster(
    folder: Path, environment: Mapping[str, str], program: Path, workers: int
) -> Generator[str]:
    """Run a master and workers with one core each; yield the address.

    Args:
        folder: the folder of the logs, `master.log` and `worker-N.log`, and of files of the
            workers.
        environment: the environment of their processes.
        program: Spark's `spark-class`.
        workers: the number of workers.
    """
    variables = {
        # Spark would bind to the address of another interface.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        # Masters and workers need little; by default each asks for a gigabyte.
        "SPARK_DAEMON_MEMORY": "256m",
    }
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    listening = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = {
        "master": [f"{package}.master.Master", *listening, "--port", str(port)],
        **{
            f"worker-{number}": [
                *(f"{package}.worker.Worker", *listening),
                *("--cores", "1", "--memory", "1g", address),
            ]
            for number in range(workers)
        },
    }
    log = folder / "master.log"
    with ExitStack() as stack:
        for name, command in commands.items():
            stack.enter_context(
                ChildProcess(
                    name,
                    [str(program), *command],
                    log=folder / f"{name}.log",
                    environment=dict(environment) | variables,
                    folder=folder,
                )
            )
            if name == "master":
                wait_for("the master", lambda: "Starting Spark master" in read(log), START_S)
        # A worker that gets no answer registers again.
        registered = re.compile(r"Registering worker (\S+)")
        wait_for("all workers", lambda: len({*registered.findall(read(log))}) == workers, START_S)
        yield address


@contextmanager
def bare_connect_server(folder: Path) -> Generator[str]:
    """Run a Connect server whose workers have the bare Python; yield its address."""
    port = free_port()
    conf = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    with _connect_server(folder, port, conf, bare_environment(folder), bare_python(), "connect"):
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def connect_server_at(
    folder: Path, port: int, conf: Mapping[str, str], name: str = "connect"
) -> Generator[ChildProcess]:
    """Run a Connect server of this Python's Spark, which asks for no token; yield its process.

    Args:
        folder: of its log, which bears its name.
        port: where it listens, on the loopback.
        conf: its configuration, beyond that of a local one.
        name: of the process.
    """
    settings = server_conf(folder) | dict(conf)
    environment = spark_environment(folder, without_spark_connect())
    with _connect_server(folder, port, settings, environment, Path(sys.executable), name) as server:
        yield server


@contextmanager
def _connect_server(
    folder: Path,
    port: int,
    conf: Mapping[str, str],
    environment: Mapping[str, str],
    python: Path,
    name: str,
) -> Generator[ChildProcess]:
    """Run a Connect server of the Spark of a Python; yield its process once it listens."""
    own = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [
        str(_programs(python) / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(
            word
            for key, value in (own | dict(conf)).items()
            for word in ("--conf", f"{key}={value}")
        ),
        "spark-internal",
    ]
    variables = dict(environment) | {"SPARK_LOCAL_IP": "127.0.0.1"}
    log = folder / f"{name}.log"
    with ChildProcess(name, command, log=log, environment=variables, folder=folder) as server:
        wait_for("the Connect server", lambda: port_open(port), START_S)
        yield server


def read(path: Path) -> str:
    """Return the text of a log; nothing where there is none yet."""
    return path.read_text(errors="replace") if path.exists() else ""


def this_spark(folder: Path) -> tuple[dict[str, str], Path]:
    """Return the environment of a cluster of this Python's Spark, and its `spark-class`."""
    return spark_environment(folder, os.environ), spark_class(Path(sys.executable))
