"""Nodes and Connect servers of other releases of Spark: the project's own tests, on each pair.

A release is a folder with its PySpark, which comes before the tests' own on the path of a child.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.assets.spark import connect_server
from dagster_leasehold.assets.spark.connect_server import TOKEN_VARIABLE, ConnectServer
from dagster_leasehold.assets.spark.spark_session import spark_environment
from dagster_leasehold.assets.spark.spark_versions import refusal
from tests.conftest import SERVER_VARIABLE
from tests.integration.assets.runs import PROJECT
from tests.own_environments import PackagesMissing, own_packages
from tests.spark_clusters import standalone_cluster
from tests.spark_iceberg import without_spark_connect

pytestmark = [pytest.mark.release, pytest.mark.spark, pytest.mark.timeout(1800)]
VERSIONS = ["4.0.0", "4.1.4", "4.2.1", "4.3.0"]
TESTS = "tests/integration/assets/test_sweep_connect.py"
JOBS = "test_case or test_a_lost_lease_interrupts_the_job"
"""The tests of a session, wherever its server is; others end the embedded server."""
DRIVER = """
import sys
from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark.spark_resource import SparkResource
try:
    SparkResource(mode=sys.argv[1], folder=sys.argv[2]).spark_session
except SparkUnavailable as error:
    print(error)
"""
START = """
import sys
from pathlib import Path
from dagster_leasehold.assets.spark.spark_session import connect_address
connect_address(Path(sys.argv[1]))
"""


def environment(version: str) -> dict[str, str]:
    """Return the environment of a child that has this version of PySpark."""
    try:
        folder = own_packages(f"pyspark-{version}", (f"pyspark=={version}",))
    except PackagesMissing as missing:
        pytest.skip(str(missing))
    return without_spark_connect() | {"PYTHONPATH": os.pathsep.join([str(folder), str(PROJECT)])}


def python(*arguments: str, variables: dict[str, str]) -> tuple[int, str]:
    """Return the exit code and the output of a child."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[dict[str, str]]:
    """Return the variables that connect a client to a server of one version."""
    folder = tmp_path_factory.mktemp("server")
    code, output = python("-c", START, str(folder), variables=environment(request.param))
    assert code == 0, output
    started = ConnectServer.read(folder)
    assert started is not None
    yield {
        SERVER_VARIABLE: f"sc://localhost:{started.port}",
        TOKEN_VARIABLE: ConnectServer.read_token(folder),
    }
    connect_server.stop(folder)


@pytest.mark.parametrize(
    ("server", "server_version", "here"),
    [(server, server, here) for server in VERSIONS for here in VERSIONS if here != server],
    indirect=["server"],
)
def test_a_server_of_another_release_serves_a_run(
    server: dict[str, str], server_version: str, here: str
) -> None:
    """Goal: a pair goes through every case of a sweep, or is refused in a sentence."""
    sentence = refusal(here, server_version)
    tests = JOBS if sentence is None else "test_case"
    code, output = python(
        *("-m", "pytest", "-q", "-x", "-n", "0", TESTS, "-k", tests),
        variables=environment(here) | server,
    )
    assert (code == 0) == (sentence is None), output[-6000:]
    assert sentence is None or sentence in output


@pytest.mark.parametrize(("cluster", "here"), [("4.2.1", "4.3.0"), ("4.3.0", "4.2.1")])
def test_a_cluster_of_another_release_is_refused(tmp_path: Path, cluster: str, here: str) -> None:
    """Method: a master of one version is given the driver of another."""
    theirs = spark_environment(tmp_path, environment(cluster))
    program = Path(theirs["PYTHONPATH"].split(os.pathsep)[0]) / "pyspark/bin/spark-class"
    with standalone_cluster(tmp_path, theirs, program, 1) as master:
        ours = environment(here) | {"SPARK_LOCAL_IP": "127.0.0.1"}
        code, output = python("-c", DRIVER, master, str(tmp_path / "driver"), variables=ours)
    assert code == 0, output[-6000:]
    assert f"Spark ({master}) accepted no application" in output
    assert f"its version of Spark is not {here} as on the nodes" in output


@pytest.mark.parametrize("version", VERSIONS)
def test_an_embedded_server_of_another_release_serves_a_run(version: str) -> None:
    code, output = python(
        *("-m", "pytest", "-q", "-x", "-n", "0", TESTS), variables=environment(version)
    )
    assert code == 0, output[-6000:]
