"""The session as Dagster gets it: through `dagster_pyspark`, with no secret on record."""

import json
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import dagster as dg
import pytest

from dagster_leasehold.assets.spark.connect_server import ConnectServer, running
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from tests.certificates import Authority
from tests.spark_iceberg import without_spark_connect

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
    """An archive keeps no compiled code: each worker would compile pyspark again."""
    import pyarrow as pa
    import pyspark

    def loaded_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow
        import pyspark as of_worker

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"file": [of_worker.__file__]})

    rows = connect_session.range(1).mapInArrow(loaded_from, "file string").collect()
    assert {row["file"] for row in rows} == {pyspark.__file__}


def test_modules_of_a_worker_are_excluded_from_garbage_collection(connect_session: Any) -> None:
    """Spark collects garbage after each task, and would scan all imported modules each time."""
    import pyarrow as pa

    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    # The first task of a worker reports none.
    job = connect_session.range(1).mapInArrow(frozen, "objects long")
    counts = [job.collect()[0]["objects"] for _ in range(5)]
    assert max(counts) > 10_000


def test_sessions_use_utc_and_microseconds(connect_session: Any) -> None:
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


def test_a_dead_server_is_reported_within_seconds(tmp_path: Path) -> None:
    """Goal: a run does not wait for ten minutes. Method: an address without a server."""
    error = error_at("sc://localhost:1", tmp_path)
    assert "SparkUnavailable: No Spark Connect server answers at localhost:1" in error


def test_a_server_that_dies_before_the_first_call_is_reported_soon(tmp_path: Path) -> None:
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


class Terminator:
    """Ends TLS before a plain server on the loopback, as a load balancer does.

    Args:
        certificate: the files of its certificate and key.
        port: the port of the plain server.
    """

    def __init__(self, certificate: tuple[Path, Path], port: int) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*certificate)
        self._context.set_alpn_protocols(["h2"])
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(30.0)
        with suppress(OSError), connection:
            inside = self._context.wrap_socket(connection, server_side=True)
            inside.setblocking(False)
            with socket.create_connection(("127.0.0.1", self._server)) as server:
                while True:
                    # A few bytes may wait inside of TLS where the socket has none.
                    waiting = inside.pending() > 0
                    ready, _, _ = select.select([inside, server], [], [], 0 if waiting else None)
                    if inside in ready or waiting:
                        with suppress(ssl.SSLWantReadError):
                            if not (data := inside.recv(65536)):
                                return
                            server.sendall(data)
                    if server in ready:
                        if not (data := server.recv(65536)):
                            return
                        inside.setblocking(True)
                        inside.sendall(data)
                        inside.setblocking(False)


CONNECTING = """
import json, os, sys, traceback
from pyspark.sql.connect.session import SparkSession
from dagster_leasehold.orchestration.resources import spark_of
from dagster_leasehold.orchestration.settings import Settings
for line in sys.stdin:
    settings, os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = json.loads(line)
    spark = spark_of(Settings(home=sys.argv[1], spark=settings))
    try:
        session = spark.spark_session
        print(session.range(7).count(), session.conf.get("spark.sql.ansi.enabled"))
    except Exception:
        print(traceback.format_exc())
    print(repr(spark), spark, spark.model_dump(), "END")
    if (session := SparkSession.getActiveSession()):
        session.release_session_on_close = False
        session.stop()
sys.stdout.flush()
os._exit(0)
"""


def connecting(home: Path, *attempts: tuple[dict[str, Any], str]) -> list[str]:
    """Return the output of a process that counts to 7 at Connect servers, each with a token."""
    answer = subprocess.run(
        [sys.executable, "-c", CONNECTING, str(home)],
        input="".join(json.dumps(attempt) + "\n" for attempt in attempts),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[3],
        env=without_spark_connect(),
        check=False,
    )
    return answer.stdout.split("END")


@pytest.mark.long
def test_a_server_behind_tls_is_reached_with_its_authority_and_the_token(
    tmp_path: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Goal: the token is sent encrypted to a trusted server, and is shown nowhere."""
    authority, server = Authority(tmp_path / "authority"), running(spark_folder)
    assert server is not None
    token = ConnectServer.read_token(spark_folder)
    with Terminator(authority.issue("spark"), server.port) as tls:
        address = {"address": f"sc://127.0.0.1:{tls.port}"}
        trusted = {**address, "certificate": str(authority.certificate)}
        good, fixed, stranger, _ = connecting(
            tmp_path,
            ({**trusted, "conf": {"spark.sql.ansi.enabled": "false"}}, token),
            ({**trusted, "conf": {"spark.executor.memory": "1g"}}, token),
            (trusted, "another-token"),
        )
        plain = {"address": f"sc://127.0.0.1:{server.port}", "tls": True}
        # gRPC reads its certificates once in a process.
        untrusted, not_tls, _ = connecting(
            tmp_path, ({**address, "tls": True}, token), (plain, token)
        )
    assert "7 false" in good
    assert "does not allow a session to set spark.executor.memory" in fixed
    assert "refuses the token: set SPARK_CONNECT_AUTHENTICATE_TOKEN" in stranger
    assert "has a certificate that is not trusted" in untrusted
    assert "does not speak TLS" in not_tls
    for answer in (good, fixed, stranger, untrusted, not_tls):
        assert token not in answer
        assert "another-token" not in answer
