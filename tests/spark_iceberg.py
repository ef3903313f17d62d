"""A separate Spark: 3.5 with Iceberg's runtime, in its own environment.

Iceberg's runtime has no release for the Spark of this project yet, and the package index has its
jar only inside another project's package, whose later versions lack some classes. The same is true
of Hadoop's S3 client: H2O's jar has it, with Amazon's SDK and the Hadoop that it needs.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.spark.spark_session import CONNECT_MODE_VARIABLES
from tests.object_store import ENVIRONMENT
from tests.own_environments import own_environment

PACKAGES = ("pyspark==3.5.9", "snowpark-connect-deps-iceberg==1.0.2")
S3_PACKAGES = ("h2o==3.46.0.12",)
S3_CLASSES = (
    "org/apache/hadoop/",
    "com/amazonaws/",
    "com/ctc/wstx/",
    "com/google/re2j/",
    "org/apache/commons/configuration2/",
    "org/codehaus/stax2/",
)
PROGRAM = """
import json
import os
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
    "spark.driver.extraClassPath": sys.argv[1],
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
    "spark.hadoop.fs.s3a.path.style.access": "true",
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


def spark_python() -> str:
    """Return the Python that has it.

    Raises:
        PackagesMissing: Spark cannot be installed here.
    """
    return str(own_environment("spark-3.5-iceberg", PACKAGES) / "python")


def s3_classes() -> Path:
    """Return a jar with Hadoop's client of S3, to come before Spark's own Hadoop.

    Raises:
        PackagesMissing: H2O cannot be installed here.
    """
    folder = own_environment("hadoop-s3a", S3_PACKAGES).parent
    jar = folder / "s3a.jar"
    if not jar.exists():
        (whole,) = folder.glob("lib/python*/site-packages/h2o/backend/bin/h2o.jar")
        draft = folder / f"{os.getpid()}.jar"
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(draft, "w") as sink:
            for entry in source.infolist():
                if entry.filename.startswith(S3_CLASSES) and not entry.is_dir():
                    sink.writestr(entry, source.read(entry))
        draft.rename(jar)
    return jar


def without_spark_connect() -> dict[str, str]:
    """Return the environment for a Spark of another mode than that of the tests' own."""
    return {name: text for name, text in os.environ.items() if name not in CONNECT_MODE_VARIABLES}


def variables() -> dict[str, str]:
    """Return its variables, without the settings of the tests' own Spark."""
    own = ("SPARK_HOME", "PYTHONPATH")
    shared = without_spark_connect().items()
    return {name: text for name, text in shared if name not in own} | {"TZ": "UTC"}


class SparkReader:
    """One process with a session that reads tables by the locations of their metadata.

    Raises:
        PackagesMissing: Spark or what it needs cannot be installed here.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [spark_python(), "-c", PROGRAM, str(s3_classes())],
            env=variables() | ENVIRONMENT,
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
