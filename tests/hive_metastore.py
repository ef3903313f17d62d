"""A Hive metastore on the loopback: the server that Spark 3.5 carries among its jars."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.spark_iceberg import spark_python, variables

START_TIMEOUT_S = 120
# Its flags for tests would make the tables of locks, too, but refuse the locks of PyIceberg.
PROGRAM = """
import sys
from pyspark.java_gateway import launch_gateway

folder, port = sys.argv[1:]
jvm = launch_gateway().jvm
hive = jvm.org.apache.hadoop.hive
conf = hive.conf.HiveConf()
for name, value in {
    "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/database;create=true",
    "hive.metastore.warehouse.dir": f"{folder}/warehouse",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
}.items():
    conf.set(name, value)
    jvm.java.lang.System.setProperty(name, value)
hive.metastore.txn.TxnDbUtil.setConfValues(conf)
hive.metastore.txn.TxnDbUtil.prepDb(conf)
hive.metastore.HiveMetaStore.startMetaStore(int(port), None, conf)
"""


@contextmanager
def hive_metastore(folder: Path) -> Generator[str]:
    """Run a metastore whose database is in a folder; yield its URI.

    Raises:
        PackagesMissing: Spark cannot be installed here.
    """
    port = free_port()
    command = [spark_python(), "-c", PROGRAM, str(folder), str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=variables(), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_for_port(process, port, folder / "log")
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.kill()  # Java ends when its standard input does
        process.wait()


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a server takes connections.

    Raises:
        RuntimeError: it does not; its own words.
    """
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args} did not start:\n{log.read_text('utf-8')[-2000:]}")
