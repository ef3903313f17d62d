"""The session as Dagster gets it: through `dagster_pyspark`, with no secret on record."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.spark.connect_server import ConnectServer, running
from dagster_leasehold.assets.spark.spark_resource import SparkResource

pytestmark = pytest.mark.spark


def test_a_run_leaves_no_token_in_dagster(
    tmp_path: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Method: a run that uses, logs and fails with the resource; then all that Dagster stored."""

    @dg.op
    def count(context: dg.OpExecutionContext, spark: SparkResource) -> int:
        context.log.info("%r %s", spark, spark)
        assert spark.spark_session is spark.spark_session
        return spark.spark_session.range(5).count()

    @dg.op
    def fail(context: dg.OpExecutionContext, spark: SparkResource, number: int) -> None:
        raise ValueError(f"{spark!r} {spark.spark_session!r} {number}")

    @dg.job(resource_defs={"spark": SparkResource(mode="connect", folder=str(spark_folder))})
    def work() -> None:
        fail(count())

    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        result = work.execute_in_process(instance=instance, raise_on_error=False)
        assert result.output_for_node("count") == 5
        assert not result.success
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        stored = [str(entry.to_json()) for entry in instance.all_logs(result.run_id)]
        stored += [json.dumps(run.run_config), json.dumps(dict(run.tags))]
        stored += [repr(instance.get_job_snapshot(run.job_snapshot_id or ""))]
    files = [path for path in (tmp_path / "dagster").rglob("*") if path.is_file()]
    token = ConnectServer.read_token(spark_folder)
    server = running(spark_folder)
    assert server is not None
    for secret in (token, server.session_id):
        assert not any(secret in text for text in stored)
        assert not any(secret.encode() in path.read_bytes() for path in files)
    assert any(str(spark_folder) in text for text in stored), "the search does find what is there"


def test_workers_load_the_installed_pyspark(connect_session: Any) -> None:
    """An archive keeps no compiled code: each worker would compile pyspark anew."""
    import pyarrow as pa
    import pyspark

    def loaded_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow
        import pyspark as of_worker

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"file": [of_worker.__file__]})

    rows = connect_session.range(1).mapInArrow(loaded_from, "file string").collect()
    assert {row["file"] for row in rows} == {pyspark.__file__}


def test_sessions_speak_utc_and_microseconds(connect_session: Any) -> None:
    assert connect_session.conf.get("spark.sql.session.timeZone") == "UTC"
    assert connect_session.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"


def error_at(address: str, folder: Path) -> str:
    """Return the output of a process that asks for a session of this address within 100 s."""
    code = (
        "import sys; from dagster_leasehold.assets.spark.spark_resource import SparkResource; "
        "SparkResource(mode=sys.argv[1], folder=sys.argv[2]).spark_session"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, address, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    return answer.stderr


def test_a_server_that_is_gone_is_told_within_seconds(tmp_path: Path) -> None:
    """Goal: a run must not wait for ten minutes. Method: an address where nobody listens."""
    error = error_at("sc://localhost:1", tmp_path)
    assert "SparkUnavailable: No Spark Connect server answers at localhost:1" in error


def test_a_server_that_goes_before_the_first_call_is_told_soon(tmp_path: Path) -> None:
    """Goal: as above. Method: a port that takes one connection, and is closed then."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def take_one() -> None:
            listener.accept()[0].close()
            listener.close()

        thread = threading.Thread(target=take_one)
        thread.start()
        error = error_at(f"sc://localhost:{port}", tmp_path)
        thread.join()
    assert f"SparkUnavailable: Spark (sc://localhost:{port}) does not start or answer" in error
