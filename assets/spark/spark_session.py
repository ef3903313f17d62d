"""The configuration of Spark, and the address of a session.

`connect` is a Spark Connect server on the loopback that runs share; `classic` is a session in the
process itself; anything else is an address, `sc://…` of a Connect server or a Spark master.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import dagster_leasehold
from dagster_leasehold.assets.errors import SparkUnavailable
from dagster_leasehold.assets.spark.connect_server import (
    TOKEN_VARIABLE,
    ConnectServer,
    connect_server,
)
from dagster_leasehold.assets.spark.spark_runtime import java_home, spark_home
from dagster_leasehold.lease_store.errors import InvalidSetting, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT = "connect"
CLASSIC = "classic"
CONNECT_SCHEME = "sc://"
CONNECT_MODE_VARIABLES = ("SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "SPARK_REMOTE")
_MODE = re.compile(r"connect|classic|yarn|local(\[[^\]]+\])?|(sc|spark|k8s)://.+")
CONNECT_PORT_DEFAULT = 15002
LISTENER_TIMEOUT_S = 10.0
# A socket's address holds 104 bytes on macOS, 108 on Linux, and Spark adds 42 to the folder.
SOCKET_FOLDER_LENGTH_MAX = 60
CONNECT_RETRIES: dict[str, Any] = {"max_retries": 5, "initial_backoff": 50, "max_backoff": 5_000}
DRIVER_MEMORY = "2g"
"""The heap of the JVM; records on their way through Python workers are outside of it."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def server_conf(folder: Path) -> dict[str, str]:
    """Return the Spark configuration of a local session or server whose files live in `folder`."""
    conf = {
        "spark.app.name": "leasehold",
        "spark.master": f"local[{cores()}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.log.level": "WARN",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.sql.warehouse.dir": str(folder.absolute() / "warehouse"),
        **session_conf(),
    }
    return conf | _socket_conf()


def session_conf() -> dict[str, str]:
    """Return the settings that the project relies on; a running session takes them too."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.compression.codec": "zstd",
    }


def _socket_conf() -> dict[str, str]:
    # Unix sockets between Spark and its Python workers save 40 to 80 ms a job.
    folder = tempfile.gettempdir()
    if os.name != "posix" or len(os.fsencode(folder)) > SOCKET_FOLDER_LENGTH_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": folder,
    }


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
    return {"SPARK_HOME": str(home), **spark_environment(folder, os.environ)}


def check_mode(mode: str) -> str:
    """Return `mode`, if it names a way to reach Spark and gives no secret away.

    Raises:
        InvalidSetting: it is neither a word nor an address, or the address carries a token.
    """
    if not _MODE.fullmatch(mode):
        raise InvalidSetting(
            f"The setting spark is {shown(mode)}: use 'connect', 'classic', or an address such as "
            "sc://host:15002 or spark://host:7077."
        )
    if "token=" in mode.lower():
        # The mode is part of what Dagster stores and shows of a job; a token must not be.
        raise InvalidSetting(
            f"The setting spark carries a token: give it in the environment as {TOKEN_VARIABLE}."
        )
    return mode


def connect_address(folder: Path) -> str:
    """Return the address of the embedded Connect server, started now if none runs.

    The token goes into this process's environment, where Spark's client looks for it; the
    address itself holds no secret.

    Raises:
        SparkUnavailable: the server does not start.
        JavaNotFound: there is no Java to run it.
    """
    server: ConnectServer = connect_server(
        folder, server_conf(folder), partial(_local_environment, folder)
    )
    os.environ[TOKEN_VARIABLE] = server.read_token(folder)
    return server.address


def settle(session: SparkSession) -> None:
    """Give a session that was just built the settings that the project relies on.

    A client of a Connect server also learns to give up soon: by default it would try for ten
    minutes to reach a server that is gone, and once more when its process ends.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        client: Any = session.client
        from pyspark.sql.connect.client.retries import DefaultPolicy

        # Before the first call, which already meets no server where it has just died.
        client.set_retry_policies([DefaultPolicy(**CONNECT_RETRIES)])
        # It would clear a cache of models, of which this project's runs make none.
        atexit.unregister(client._on_exit)
    for key, value in session_conf().items():
        if session.conf.get(key) != value:
            session.conf.set(key, value)


def _require_listener(address: str) -> None:
    """Find out at once that nobody listens: Spark's client would try for ten minutes."""
    parts = urlsplit(address)
    host, port = parts.hostname or "localhost", parts.port or CONNECT_PORT_DEFAULT
    try:
        socket.create_connection((host, port), timeout=LISTENER_TIMEOUT_S).close()
    except OSError as error:
        raise SparkUnavailable(
            f"No Spark Connect server answers at {host}:{port} ({error}): start it, or change the "
            "setting spark."
        ) from None


def builder_conf(mode: str, folder: Path) -> dict[str, str]:
    """Return the configuration with which Spark's builder, or `dagster_pyspark`, gives the session.

    Raises:
        InvalidSetting: the mode is not valid.
        SparkUnavailable: the embedded server does not start, or none answers at the address.
        JavaNotFound: there is no Java to run Spark.
    """
    check_mode(mode)
    if mode == CONNECT:
        return {"spark.remote": connect_address(folder)}
    if mode.startswith(CONNECT_SCHEME):
        _require_listener(mode)
        return {"spark.remote": mode}
    for variable in CONNECT_MODE_VARIABLES:
        # A parent that is a client of a Connect server says so in its environment; pyspark would
        # take that for this process's wish.
        os.environ.pop(variable, None)
    conf = server_conf(folder)
    if mode != CLASSIC:
        conf["spark.master"] = mode
    if mode == CLASSIC or mode.startswith("local"):
        # Private from the beginning: a server's token may come to be there.
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ.update(_local_environment(folder))
        return conf
    os.environ.update(spark_environment(folder, os.environ))
    # A cluster must be able to call this process back, and has its own folders.
    for key in ("spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir"):
        del conf[key]
    return conf
