"""The configuration of Spark, and the address of a session; `spark_resource` calls it.

The mode `connect` is the embedded Connect server on the loopback, which runs share. Any other mode
is an address: `sc://…` of a Connect server, or a Spark master with its driver in this process.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dagster_leasehold
from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark import worker_daemon
from dagster_leasehold.assets.spark.connect_server import ConnectServer, connect_server
from dagster_leasehold.assets.spark.spark_runtime import java_home, spark_home
from dagster_leasehold.assets.spark.spark_settings import (
    CONNECT,
    CONNECT_SCHEME,
    MEMORY_KEY,
    SESSION_CONF,
    TOKEN_VARIABLE,
    check_conf,
    check_mode,
    is_remote,
)
from dagster_leasehold.assets.spark.spark_versions import refusal, version_here
from dagster_leasehold.lease_store.errors import InvalidSetting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECT_MODE_VARIABLES = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_REMOTE")
CONNECT_PORT_DEFAULT = 15002
HADOOP_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
NO_CONF: Mapping[str, str] = MappingProxyType({})
LISTENER_TIMEOUT_S = 10.0
# A socket's address holds 104 bytes on macOS, 108 on Linux, and Spark adds 42 to the folder.
SOCKET_FOLDER_LENGTH_MAX = 60
SOCKET_KEYS = ("spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir")
DAEMON_KEY, WORKER_DAEMON = "spark.python.daemon.module", worker_daemon.__name__
PARALLELISM_KEYS = ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism")
SESSIONS_REMEMBERED = 4
CONNECT_RETRIES: dict[str, Any] = {"max_retries": 5, "initial_backoff": 50, "max_backoff": 5_000}
SESSION_DEFAULTS = {"spark.sql.parquet.compression.codec": "zstd"}
"""A session gets these settings unless the user's configuration sets them."""
DRIVER_MEMORY = "2g"
"""The heap of the JVM; records in Python workers are outside of it."""

FEW_CORES_MAX = 4
OPTIONS_OF_FEW_CORES = (
    "-XX:+UseSerialGC -XX:NewSize=32m -XX:MaxNewSize=224m "
    "-XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=40 -Xlog:gc+ergo=error"
)
"""Options of the JVM on a host with few cores. There they are as fast as the other options, and use
two thirds of the memory after a job on DataFrames. The serial collector was not measured with more
cores. In a small heap the JVM makes the young generation smaller; the last option keeps its notice
off standard output, where programs print."""
OPTIONS_OF_MANY_CORES = "-XX:+UseParallelGC"


def cores() -> int:
    """Return the number of cores that this process can use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def tasks_at_once(session: SparkSession) -> int:
    """Return an estimate of the tasks that a session's Spark runs at once.

    The configured parallelism wins. A driver knows the cores of its registered executors. A client
    of a Connect server does not, and assumes this host's cores.
    """
    # If Spark does not answer, the job itself fails and reports it.
    with suppress(Exception):
        if setting := _parallelism(session):
            return int(setting)
        return max(cores(), session.sparkContext.defaultParallelism)
    return cores()


@lru_cache(maxsize=SESSIONS_REMEMBERED)
def _parallelism(session: SparkSession) -> str | None:
    """Return the configured number of tasks, cached to save requests to a Connect server."""
    return next(filter(None, (session.conf.get(key, None) for key in PARALLELISM_KEYS)), None)


@lru_cache(maxsize=SESSIONS_REMEMBERED)
def task_numbers(session: SparkSession, count: int) -> DataFrame:
    """Return a DataFrame that gives each task of a job its number.

    It is cached because each new DataFrame asks a Connect server for its columns.
    """
    return session.range(0, count, 1, count)


def server_conf(folder: Path) -> dict[str, str]:
    """Return the Spark configuration of a local session or server whose files live in `folder`."""
    conf = {
        "spark.app.name": "leasehold",
        "spark.master": f"local[{cores()}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        MEMORY_KEY: DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": (
            OPTIONS_OF_FEW_CORES if cores() <= FEW_CORES_MAX else OPTIONS_OF_MANY_CORES
        ),
        "spark.log.level": "WARN",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.sql.warehouse.dir": str(folder.absolute() / "warehouse"),
        **SESSION_DEFAULTS,
        **SESSION_CONF,
    }
    return conf | _socket_conf()


def _socket_conf() -> dict[str, str]:
    # Unix sockets between Spark and its Python workers save 40 to 80 ms a job.
    folder = tempfile.gettempdir()
    if os.name != "posix" or len(os.fsencode(folder)) > SOCKET_FOLDER_LENGTH_MAX:
        return {}
    return dict(zip(SOCKET_KEYS, ("true", folder), strict=True))


def spark_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a Spark process, with its paths of Java and Python.

    Raises:
        JavaNotFound: there is no Java to run Spark.
    """
    # Workers import the source, the sink and the user's transform by the same names as this
    # process. They find the packages of this Python's installation anyway.
    folders = [entry for entry in sys.path if Path(entry or ".").is_dir()]
    search = [str(Path(entry).absolute()) for entry in folders]
    outside = [entry for entry in search if not entry.startswith((sys.prefix, sys.base_prefix))]
    inherited = environ.get("PYTHONPATH", "").split(os.pathsep)
    project = str(Path(dagster_leasehold.__file__).absolute().parents[1])
    path = dict.fromkeys([*filter(None, inherited), *outside, project])
    return {
        **environ,
        "JAVA_HOME": str(java_home(folder / "java", environ=environ)),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
    }


def _local_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a Spark on this machine; variables that the user has set win."""
    home = spark_home(folder / "home")
    # Without SPARK_LOCAL_IP, Spark resolves the host's name, and does not start if that fails.
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    return own | spark_environment(folder, os.environ)


def connect_address(folder: Path, conf: Mapping[str, str] = NO_CONF) -> str:
    """Return the address of the embedded Connect server, started now if none runs.

    The token goes into this process's environment, where Spark's client finds it; the address
    itself holds no secret. `conf` is the user's configuration, and wins over the project's.

    Raises:
        SparkUnavailable: the server does not start.
        JavaNotFound: there is no Java to run it.
    """
    server: ConnectServer = connect_server(
        folder,
        # The server's workers outlive a run, and the next run can have edited code.
        server_conf(folder) | {DAEMON_KEY: WORKER_DAEMON},
        partial(_local_environment, folder),
        user_conf=conf,
    )
    os.environ[TOKEN_VARIABLE] = server.read_token(folder)
    return server.address


def settle(session: SparkSession, conf: Mapping[str, str] = NO_CONF) -> None:
    """Apply the user's configuration and the project's settings to a new session.

    A client of a Connect server also gets short retries. By default it retries for ten minutes if
    the server is gone, and again when its process ends.

    Raises:
        InvalidSetting: the server does not let a session set one of these keys.
        SparkUnavailable: the versions of the server and of this process are incompatible.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        client: Any = session.client
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Set before the first call, because the server can already be gone.
        client.set_retry_policies([DefaultPolicy(**CONNECT_RETRIES)])
        # From 4.2 on, `_on_exit` clears a cache of models, which this project does not use.
        if hasattr(client, "_on_exit"):
            atexit.unregister(client._on_exit)
        if sentence := refusal(version_here(), session.version):
            raise SparkUnavailable(sentence)
    for key, value in {**SESSION_DEFAULTS, **conf, **SESSION_CONF}.items():
        if session.conf.get(key, None) == value:
            continue
        if not session.conf.isModifiable(key):
            raise InvalidSetting(
                f"The Spark Connect server does not let a session set {key}: remove it from "
                "spark.conf, and set it when you start the server."
            )
        session.conf.set(key, value)


def forget(session: Any) -> None:
    """Drop a lost session without closing it on the Connect server."""
    session.release_session_on_close = False
    session.stop()


def require_listener(address: str) -> None:
    """Fail at once if no server listens; Spark's client would retry for ten minutes."""
    parts = urlsplit(address)
    host, port = parts.hostname or "localhost", parts.port or CONNECT_PORT_DEFAULT
    try:
        socket.create_connection((host, port), timeout=LISTENER_TIMEOUT_S).close()
    except OSError as error:
        raise SparkUnavailable(
            f"No Spark Connect server answers at {host}:{port} ({error}): start it, or change the "
            "setting spark."
        ) from None


def builder_conf(mode: str, folder: Path, user_conf: Mapping[str, str] = NO_CONF) -> dict[str, str]:
    """Return the configuration of the session for Spark's builder or `dagster_pyspark`.

    Raises:
        InvalidSetting: the mode is not valid, or Hadoop's configuration is not found for YARN.
        SparkUnavailable: the embedded server does not start, or none answers at the address.
        JavaNotFound: there is no Java to run Spark.
    """
    check_mode(mode)
    check_conf(mode, {key: text for key, text in user_conf.items() if key != MEMORY_KEY})
    if mode == CONNECT:
        return {"spark.remote": connect_address(folder, user_conf)}
    if mode.startswith(CONNECT_SCHEME):
        require_listener(mode)
        return {"spark.remote": mode}
    for variable in CONNECT_MODE_VARIABLES:
        # A parent process that uses a Connect server can pass these on; pyspark would then connect
        # this process, too.
        os.environ.pop(variable, None)
    conf = {**server_conf(folder), "spark.master": mode}
    if not is_remote(mode):
        # Private from the start, because a server's token can be in it.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ.update(_local_environment(folder))
        return {**conf, **user_conf}
    if mode == "yarn" and not any(os.environ.get(name) for name in HADOOP_VARIABLES):
        raise InvalidSetting(
            "Spark finds YARN in Hadoop's configuration: set the environment variable "
            f"{HADOOP_VARIABLES[0]} to its folder."
        )
    os.environ.update(spark_environment(folder, os.environ))
    # Executors of a cluster must reach this process, and have folders of their own. They inherit
    # the driver's configuration: without the socket folder on their hosts each task would fail, and
    # their own folder (a container's on YARN) can be too long for a socket.
    local_keys = ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir")
    for key in (*local_keys, *SOCKET_KEYS):
        conf.pop(key, None)
    return {**conf, **user_conf}
