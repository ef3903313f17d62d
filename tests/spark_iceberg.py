"""A Spark that is not ours: 3.5 with Iceberg's own runtime, in an environment of its own.

Iceberg's runtime has no release for the Spark of this project yet, and the jar is on the package
index only inside a package of somebody else's, which later versions of it strip of classes.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.database_server import cache_folder

PACKAGES = ("pyspark==3.5.9", "snowpark-connect-deps-iceberg==1.0.2")
INSTALL_TIMEOUT_S = 240
PROGRAM = """
import json
import pickle
import sys
from pathlib import Path

import snowpark_connect_deps_iceberg
from pyspark.sql import SparkSession

JARS = Path(snowpark_connect_deps_iceberg.__file__).parent / "jars"
(RUNTIME,) = JARS.glob("iceberg-spark-runtime-3.5_2.12-*.jar")
SETTINGS = {
    "spark.master": "local[1]",
    "spark.jars": str(RUNTIME),
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
}
session = SparkSession.builder.config(map=SETTINGS).getOrCreate()
for line in sys.stdin:
    metadata, where = json.loads(line)
    try:
        frame = session.read.format("iceberg").load(metadata).where(where)
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        scan = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
        answer = rows, scan.metrics().apply("resultDataFiles").value()
    except Exception as error:
        answer = str(error)
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class SparkMissing(Exception):
    """That Spark cannot be installed here."""


@cache
def environment() -> Path:
    """Return the folder of the environment; it is made now if it is not there.

    Raises:
        SparkMissing: the packages cannot be installed.
    """
    folder = cache_folder("spark-3.5-iceberg")
    done = folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            try:
                _run(sys.executable, "-m", "venv", "--clear", str(folder))
                _run(str(folder / "bin/pip"), "install", "--quiet", *PACKAGES)
            except (OSError, subprocess.SubprocessError) as error:
                raise SparkMissing(f"pip could not install {PACKAGES}: {error}") from None
            done.touch()
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)


def variables() -> dict[str, str]:
    """Return the variables for it: what the tests' own Spark was told is not for this one."""
    own = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in own} | {"TZ": "UTC"}


class SparkReader:
    """One process with a session that reads tables by the locations of their metadata."""

    def __init__(self) -> None:
        python = environment() / "bin/python"
        self._process = subprocess.Popen(
            [str(python), "-c", PROGRAM],
            env=variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def rows(self, metadata: str, where: str) -> tuple[list[dict[str, Any]], int]:
        """Return the rows of a table that a filter lets through, and the number of files planned.

        Raises:
            RuntimeError: Spark cannot read it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([metadata, where])}\n".encode())
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
