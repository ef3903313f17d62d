"""A deployment on separate hosts: database, object store, Spark, Dagster's daemon, three nodes.

The process that checks it runs on the host `operator`, which has no incidents.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.spark.spark_runtime import spark_home
from dagster_leasehold.assets.spark.spark_session import server_conf, spark_environment
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.orchestration.instance import create_instance, nodes_text
from dagster_leasehold.orchestration.settings import Settings
from tests import mariadb as mariadb_server
from tests.chaos.proof import Proof
from tests.chaos.stream import KEY, STREAM, TIMEOUT_S
from tests.chaos.world import START_S, Service, World, joined, with_short_waits
from tests.chaos.writer import SteadyWriter
from tests.dagster_deployment import ROOT, port_open
from tests.database_server import PASSWORD, USER
from tests.mariadb import MariaDB
from tests.network.hosts import Network

DATABASE, STORE, SPARK, DAEMON, OPERATOR = "database", "store", "spark", "daemon", "operator"
NODES = ("a", "b", "c")
HOSTS = (OPERATOR, DATABASE, STORE, SPARK, DAEMON, *NODES)
DATABASE_PORT, STORE_PORT, SPARK_PORT, NODE_PORT, CODE_PORT = 3306, 9000, 15002, 4202, 4000
CAMPAIGN = "LEASEHOLD_CHAOS_"
MODULE, BUCKET = "tests.network.definitions", "leasehold"


@dataclass(slots=True)
class MariaDBOnHost(MariaDB):
    """A MariaDB on a host of a network."""

    prefix: list[str] = field(default_factory=list)

    def command(self) -> list[str]:
        return [*self.prefix, *MariaDB.command(self)]

    def start(self, *options: str) -> None:
        MariaDB.start(self, "--bind-address=0.0.0.0", *options)


@dataclass
class NetworkWorld(World):
    """The deployment on its hosts."""

    network: Network = field(kw_only=True)

    def processes(self) -> list[psutil.Process]:
        """Return all processes on hosts, except those of the operator."""
        own: list[psutil.Process] = []
        for pid in [pid for host in HOSTS if host != OPERATOR for pid in self.network.pids(host)]:
            with suppress(psutil.Error):  # it has just ended
                own.append(psutil.Process(pid))
        return own


@contextmanager
def network_world(home: Path, network: Network) -> Generator[NetworkWorld]:
    """Start each part on its host; the end of the network ends remaining processes."""
    (home / "failpoints").mkdir(parents=True)
    os.environ.update(_environment(network))
    with ExitStack() as stack:
        mariadb = stack.enter_context(
            mariadb_server.running(
                lambda folder: MariaDBOnHost(folder, DATABASE_PORT, prefix=network.on(DATABASE))
            )
        )
        for name in ("leases", "dagster"):
            mariadb.create_database(name)
        mariadb.execute(f"GRANT ALL ON *.* TO '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
        store = open_store(os.environ["LEASEHOLD_DATABASE_URL"], upgrade=True)
        stack.callback(store.close)
        writer = SteadyWriter(home)
        output = output_place(os.environ["LEASEHOLD_OUTPUT"]) / STREAM / KEY.group
        proof = Proof(store, output)
        world = NetworkWorld(home, mariadb, None, store, writer, proof, network=network)
        stack.callback(_end_all, world)
        _start_store(world)
        _start_spark(world)
        _start_daemon(world)
        for node in NODES:
            _start_node(world, node)
        stack.enter_context(writer)
        world.wait("all nodes to join", lambda: joined(world, len(NODES)), START_S)
        # The first batch of a Spark server that has just started takes longer than a recovery.
        begun = writer.written()
        world.wait("the first records", lambda: not world.unread(begun), START_S)
        yield world


def _environment(network: Network) -> dict[str, str]:
    return {
        "LEASEHOLD_DATABASE_URL": (
            f"mysql+pymysql://{USER}:{PASSWORD}@{DATABASE}:{DATABASE_PORT}/leases?ssl_mode=disabled"
        ),
        "LEASEHOLD_OUTPUT": f"s3://{BUCKET}/output",
        "LEASEHOLD_SPARK": f"sc://{SPARK}:{SPARK_PORT}",
        "LEASEHOLD_AGENTS": "true",
        "LEASEHOLD_LEASE_TIMEOUT_S": str(TIMEOUT_S),
        "DAGSTER_MYSQL_HOSTNAME": DATABASE,
        "DAGSTER_MYSQL_PORT": str(DATABASE_PORT),
        "DAGSTER_MYSQL_USERNAME": USER,
        "DAGSTER_MYSQL_PASSWORD": PASSWORD,
        "DAGSTER_MYSQL_DATABASE": "dagster",
        "AWS_ENDPOINT_URL_S3": f"http://{STORE}:{STORE_PORT}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **network.environment(),
    }


def _start(
    world: NetworkWorld,
    name: str,
    host: str,
    command: Sequence[str],
    port: int | None = None,
    **environment: str,
) -> None:
    """Start a service on its host, and wait until others reach its port, if it has one."""
    # The variables of the campaign are no settings.
    inherited = {key: text for key, text in os.environ.items() if not key.startswith(CAMPAIGN)}
    service = Service(
        name,
        world.network.on(host, *command),
        log=world.home / f"{name}.log",
        environment=inherited | environment,
        folder=world.home,
    )
    world.services[name] = service
    service.__enter__()
    if port is not None:
        address = world.network.addresses[host]
        world.wait(name, lambda: port_open(port, address), START_S)


def _start_store(world: NetworkWorld) -> None:
    import boto3

    program = str(Path(sys.executable).with_name("moto_server"))
    _start(world, "store", STORE, [program, "-H", "0.0.0.0", "-p", str(STORE_PORT)], STORE_PORT)
    boto3.client("s3", endpoint_url=f"http://{STORE}:{STORE_PORT}").create_bucket(Bucket=BUCKET)


def _start_spark(world: NetworkWorld) -> None:
    """Start a Connect server that all nodes share, as a cluster's would be."""
    import pyspark

    folder = world.home / "spark"
    conf = server_conf(folder) | {
        "spark.connect.grpc.binding.address": "0.0.0.0",
        "spark.connect.grpc.binding.port": str(SPARK_PORT),
    }
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
        "spark-internal",
    ]
    environment = spark_environment(folder, os.environ)
    environment["SPARK_HOME"] = str(spark_home(folder / "home"))
    _start(world, "spark", SPARK, command, SPARK_PORT, **environment)


def _start_daemon(world: NetworkWorld) -> None:
    home = _new_home(world, DAEMON)
    workspace = home / "workspace.yaml"
    workspace.write_text(
        "load_from:\n  - grpc_server:\n"
        f"      host: 127.0.0.1\n      port: {CODE_PORT}\n      location_name: network\n"
    )
    variables = _variables_of(home)
    code = [
        *(sys.executable, "-m", "dagster", "api", "grpc", "-m", MODULE),
        *("--host", "0.0.0.0", "--port", str(CODE_PORT), "--location-name", "network"),
    ]
    _start(world, "code", DAEMON, code, CODE_PORT, **variables)
    daemon = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(workspace)]
    _start(world, "daemon", DAEMON, daemon, **variables)


def _start_node(world: NetworkWorld, node: str) -> None:
    home = _new_home(world, node)
    command = [
        *(sys.executable, "-m", "dagster_leasehold.orchestration.command_line", "node"),
        *("--name", node, "--home", str(home), "--module", MODULE),
        *("--host", "0.0.0.0", "--port", str(NODE_PORT), "--address", f"{node}:{NODE_PORT}"),
    ]
    _start(world, f"node-{node}", node, command, **_variables_of(home))


def _variables_of(home: Path) -> dict[str, str]:
    return {"LEASEHOLD_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}


def _new_home(world: NetworkWorld, host: str) -> Path:
    """Make the home that a host has for itself; the log is on a disk that all hosts mount."""
    home = world.home / "hosts" / host
    home.mkdir(parents=True)
    (home / "logs").symlink_to(world.home / "logs")
    create_instance(Settings(home=home), with_short_waits(nodes_text(mysql=True)))
    return home


def _end_all(world: NetworkWorld) -> None:
    """End the services, nodes first, and their remaining processes."""
    for service in reversed(list(world.services.values())):
        service.stop()
    for process in world.processes():
        if process.pid != world.mariadb.pid:
            with suppress(psutil.Error):
                process.kill()
