"""The configuration of Spark, and the address of a session.

`connect` is a Spark Connect server on the loopback that runs share. Anything else is an address:
`sc://…` of a Connect server, or a Spark master, whose driver is in the process itself.
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
"""Settings that a session is given unless the user's configuration says otherwise."""
DRIVER_MEMORY = "2g"
"""The heap of the JVM; records on their way through Python workers are outside of it."""

FEW_CORES_MAX = 4
OPTIONS_OF_FEW_CORES = (
    "-XX:+UseSerialGC -XX:NewSize=32m -XX:MaxNewSize=224m "
    "-XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=40 -Xlog:gc+ergo=error"
)
"""Options of the JVM on a host with few cores. They are as fast there as the others, and take two
thirds of the memory after a job on DataFrames. With more cores the serial collector was not
measured. In a small heap the JVM makes the young generation smaller, and would say so on standard
output, where a program prints its own lines."""
OPTIONS_OF_MANY_CORES = "-XX:+UseParallelGC"


def cores() -> int:
    """Return the number of cores that this process can use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def tasks_at_once(session: SparkSession) -> int:
    """Return how many tasks the Spark of a session runs at once, as far as that can be told.

    Configuration counts first. A driver knows the cores of the executors that have come so far; a
    client of a Connect server knows of none, and takes this host's, where the server might well be.
    """
    # The job itself fails as well where no answer comes, and says why.
    with suppress(Exception):
        if setting := _parallelism(session):
            return int(setting)
        return max(cores(), session.sparkContext.defaultParallelism)
    return cores()


@lru_cache(maxsize=SESSIONS_REMEMBERED)
def _parallelism(session: SparkSession) -> str | None:
    """Return the configured number of tasks; a Connect server is asked for it once."""
    return next(filter(None, (session.conf.get(key, None) for key in PARALLELISM_KEYS)), None)


@lru_cache(maxsize=SESSIONS_REMEMBERED)
def task_numbers(session: SparkSession, count: int) -> DataFrame:
    """Return the numbers of a job's tasks, one in each task.

    Each job asks for their columns, and a Connect server is asked once by the same DataFrame.
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
    """Return the environment of a Spark process: its Java, and a path that has our modules.

    Raises:
        JavaNotFound: there is no Java to run Spark.
    """
    # Workers import the source, the sink and the user's transform by the names they have here.
    # What belongs to this Python's own installation is found without help.
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
    """Return the environment of a Spark on this machine; a Spark that its user has chosen stays."""
    home = spark_home(folder / "home")
    # Without an address, Spark looks its host's name up, and does not start if it is unknown.
    own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    return own | spark_environment(folder, os.environ)


def connect_address(folder: Path, conf: Mapping[str, str] = NO_CONF) -> str:
    """Return the address of the embedded Connect server, started now if none runs.

    The token goes into this process's environment, where Spark's client looks for it; the
    address itself holds no secret. `conf` is the user's, and wins over ours.

    Raises:
        SparkUnavailable: the server does not start.
        JavaNotFound: there is no Java to run it.
    """
    server: ConnectServer = connect_server(
        folder,
        # Its workers outlive a run, and meet another one's code.
        server_conf(folder) | {DAEMON_KEY: WORKER_DAEMON},
        partial(_local_environment, folder),
        user_conf=conf,
    )
    os.environ[TOKEN_VARIABLE] = server.read_token(folder)
    return server.address


def settle(session: SparkSession, conf: Mapping[str, str] = NO_CONF) -> None:
    """Give a session that was just built the user's configuration, and what we rely on.

    A client of a Connect server also learns to give up soon: by default it would try for ten
    minutes to reach a server that is gone, and once more when its process ends.

    Raises:
        InvalidSetting: the server keeps a part of this configuration to itself.
        SparkUnavailable: the server's version and the one of this process do not go together.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        client: Any = session.client
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Before the first call, which already meets no server where it has just died.
        client.set_retry_policies([DefaultPolicy(**CONNECT_RETRIES)])
        # From 4.2 it would clear a cache of models, which this project does not use.
        if hasattr(client, "_on_exit"):
            atexit.unregister(client._on_exit)
        if sentence := refusal(version_here(), session.version):
            raise SparkUnavailable(sentence)
    for key, value in {**SESSION_DEFAULTS, **conf, **SESSION_CONF}.items():
        if session.conf.get(key, None) == value:
            continue
        if not session.conf.isModifiable(key):
            raise InvalidSetting(
                f"The Spark Connect server does not let a session set {key}: take it out of "
                "spark.conf, and give it to the server when that is started."
            )
        session.conf.set(key, value)


def forget(session: Any) -> None:
    """Let go of a session of a Connect server that is gone, without a farewell to the server."""
    session.release_session_on_close = False
    session.stop()


def require_listener(address: str) -> None:
    """Find out at once that no server listens: Spark's client would try for ten minutes."""
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
        InvalidSetting: the mode is not valid, or Hadoop's own settings are not found for YARN.
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
        # A parent that is a client of a Connect server says so in its environment; pyspark would
        # take that for this process's wish.
        os.environ.pop(variable, None)
    conf = {**server_conf(folder), "spark.master": mode}
    if not is_remote(mode):
        # Private from the beginning: a server's token might be there.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ.update(_local_environment(folder))
        return {**conf, **user_conf}
    if mode == "yarn" and not any(os.environ.get(name) for name in HADOOP_VARIABLES):
        raise InvalidSetting(
            "Spark finds YARN by Hadoop's own settings: name their folder in the environment as "
            f"{HADOOP_VARIABLES[0]}."
        )
    os.environ.update(spark_environment(folder, os.environ))
    # A cluster must be able to call this process back, and has its own folders. Executors take the
    # driver's configuration: a folder of sockets that their hosts lack would fail each task, and
    # their own (a container's on YARN) can be too long for a socket.
    here = ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir")
    for key in (*here, *SOCKET_KEYS):
        conf.pop(key, None)
    return {**conf, **user_conf}
