"""The configuration of Spark, and the address of a session; `spark_resource` calls it.

The mode `connect` is the embedded Connect server on the loopback, which runs share. Any other mode
is an address: `sc://…` for a Connect server, or a Spark master for a driver in this process.
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
SESSIONS_CACHED = 4
CONNECT_RETRIES: dict[str, Any] = {"max_retries": 5, "initial_backoff": 50, "max_backoff": 5_000}
SESSION_DEFAULTS = {"spark.sql.parquet.compression.codec": "zstd"}
"""Settings of a session that the user's configuration can override."""
DRIVER_MEMORY = "2g"
"""The heap of the JVM; records in Python workers are outside of it."""

FEW_CORES_MAX = 4
OPTIONS_ON_LINUX = "-XX:+IgnoreUnrecognizedVMOptions -XX:TrimNativeHeapInterval=10000"
"""Options of the JVM. Every ten seconds, it returns memory to the system that the C library keeps
after the JVM has freed it, which is a tenth of its memory. Early releases of Java 17 lack this
option and ignore it. On other systems, the JVM prints that they cannot return memory."""
OPTIONS_OF_FEW_CORES = (
    "-XX:+UseSerialGC -XX:InitialHeapSize=96m -XX:NewSize=32m -XX:MaxNewSize=224m "
    "-XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=40 -Xlog:gc+ergo=error"
)
"""Options of the JVM on a host with few cores. There they are as fast as the other options, and use
two thirds of the memory after a job on DataFrames. The serial collector was not measured with more
cores. By default, the heap begins with a 64th of the host's memory, and small jobs then touch all
of its young generation. In a small heap, the JVM makes the young generation smaller. The last
option keeps that notice off standard output, where programs print."""
OPTIONS_OF_MANY_CORES = "-XX:+UseParallelGC"


def cores() -> int:
    """Return the number of cores that this process can use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def tasks_at_once(session: SparkSession) -> int:
    """Return an estimate of the tasks that a session's Spark runs at once.

    It is the configured parallelism if there is one. Otherwise, a driver counts the cores of its
    registered executors, and a client of a Connect server assumes this host's cores.
    """
    # If Spark does not answer, the job itself fails and reports it.
    with suppress(Exception):
        if setting := _parallelism(session):
            return int(setting)
        return max(cores(), session.sparkContext.defaultParallelism)
    return cores()


@lru_cache(maxsize=SESSIONS_CACHED)
def _parallelism(session: SparkSession) -> str | None:
    """Return the configured number of tasks, cached to save requests to a Connect server."""
    return next(filter(None, (session.conf.get(key, None) for key in PARALLELISM_KEYS)), None)


@lru_cache(maxsize=SESSIONS_CACHED)
def task_numbers(session: SparkSession, count: int) -> DataFrame:
    """Return a DataFrame that gives each task of a job its number.

    It is cached because each new DataFrame requests its columns from a Connect server.
    """
    return session.range(0, count, 1, count)


def server_conf(folder: Path) -> dict[str, str]:
    """Return the Spark configuration of a local session or server with its files in `folder`."""
    conf = {
        "spark.app.name": "leasehold",
        "spark.master": f"local[{cores()}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        MEMORY_KEY: DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": _java_options(),
        "spark.log.level": "WARN",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.sql.warehouse.dir": str(folder.absolute() / "warehouse"),
        **SESSION_DEFAULTS,
        **SESSION_CONF,
    }
    return conf | _socket_conf()


def _java_options() -> str:
    options = OPTIONS_OF_FEW_CORES if cores() <= FEW_CORES_MAX else OPTIONS_OF_MANY_CORES
    return f"{OPTIONS_ON_LINUX} {options}" if sys.platform == "linux" else options


def _socket_conf() -> dict[str, str]:
    # Unix sockets between Spark and its Python workers save 40 to 80 ms a job.
    folder = tempfile.gettempdir()
    if os.name != "posix" or len(os.fsencode(folder)) > SOCKET_FOLDER_LENGTH_MAX:
        return {}
    return dict(zip(SOCKET_KEYS, ("true", folder), strict=True))


def spark_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a Spark process, with the paths for Java and Python."""
    # Workers import the source, the sink and the user's transform by the same names as this
    # process. The packages of this Python's installation are on their path by default.
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
    """Return the environment of a Spark on this machine; the user's variables take precedence."""
    home = spark_home(folder / "home")
    # Without SPARK_LOCAL_IP, Spark resolves the host name, and does not start if that fails.
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    return own | spark_environment(folder, os.environ)


def connect_address(folder: Path, conf: Mapping[str, str] = NO_CONF) -> str:
    """Return the address of the embedded Connect server; start the server if none runs.

    Spark's client reads the token from this process's environment; the address holds no secret.
    `conf` is the user's configuration, which overrides the project's.
    """
    server: ConnectServer = connect_server(
        folder,
        # The server's workers outlive a run, and the user can edit code before the next run.
        server_conf(folder) | {DAEMON_KEY: WORKER_DAEMON},
        partial(_local_environment, folder),
        user_conf=conf,
    )
    os.environ[TOKEN_VARIABLE] = server.read_token(folder)
    return server.address


def configure_session(session: SparkSession, conf: Mapping[str, str] = NO_CONF) -> None:
    """Apply the user's configuration and the project's settings to a new session.

    A client of a Connect server also gets short retries. By default, it retries for ten minutes if
    the server is gone, and again when its process ends.

    Raises:
        InvalidSetting: the server does not allow a session to set one of these keys.
        SparkUnavailable: the versions of the server and of this process are incompatible.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        client: Any = session.client
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Set before the first call, because the server may already be gone.
        client.set_retry_policies([DefaultPolicy(**CONNECT_RETRIES)])
        # Since 4.2, `_on_exit` clears a cache of models, which this project does not use.
        if hasattr(client, "_on_exit"):
            atexit.unregister(client._on_exit)
        if sentence := refusal(version_here(), session.version):
            raise SparkUnavailable(sentence)
    for key, value in {**SESSION_DEFAULTS, **conf, **SESSION_CONF}.items():
        if session.conf.get(key, None) == value:
            continue
        if not session.conf.isModifiable(key):
            raise InvalidSetting(
                f"The Spark Connect server does not allow a session to set {key}: remove it from "
                "spark.conf, and set it when you start the server."
            )
        session.conf.set(key, value)


def drop_session(session: Any) -> None:
    """Drop a lost session without closing it on the Connect server."""
    session.release_session_on_close = False
    session.stop()


def require_listener(address: str) -> None:
    """Raise at once if no server listens; Spark's client would retry for ten minutes."""
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
    """Return the configuration of a session, for Spark's builder or `dagster_pyspark`.

    Raises:
        InvalidSetting: the mode is not valid, or Hadoop's configuration is not found for YARN.
        SparkUnavailable: the embedded server does not start, or no server answers at the address.
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
        # This process may inherit them from a parent that uses a Connect server. pyspark would
        # then connect this process to it, too.
        os.environ.pop(variable, None)
    conf = {**server_conf(folder), "spark.master": mode}
    if not is_remote(mode):
        # Private from the start, because it can contain a server's token.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ.update(_local_environment(folder))
        return {**conf, **user_conf}
    if mode == "yarn" and not any(os.environ.get(name) for name in HADOOP_VARIABLES):
        raise InvalidSetting(
            "Spark finds YARN in Hadoop's configuration: set the environment variable "
            f"{HADOOP_VARIABLES[0]} to its folder."
        )
    os.environ.update(spark_environment(folder, os.environ))
    # Executors of a cluster must reach this process, and have their own folders. They inherit the
    # driver's configuration: each task would fail if its host lacked the socket folder, and the
    # path of its own folder (a container's on YARN) can be too long for a socket.
    local_keys = ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir")
    for key in (*local_keys, *SOCKET_KEYS):
        conf.pop(key, None)
    return {**conf, **user_conf}
