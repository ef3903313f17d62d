"""A host dies while a Spark of others continues its job, which doubles nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_leasehold.assets.output.attempts import attempt_label
from dagster_leasehold.lease_store.ledger_rows import BatchState
from tests.acceptance.held_nodes import FOLDER_VARIABLE, hold
from tests.acceptance.node_hosts import CHANGE_S, NODES, wait_for_all_records, wait_for_progress
from tests.acceptance.node_scene import KEY, TIMEOUT_S, Watched, Writer
from tests.acceptance.unit_hosts import UnitHosts
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB
from tests.object_store import ENVIRONMENT, keys
from tests.ports import free_port
from tests.spark_clusters import connect_server_at

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
]
CORES = 16
"""More than the dead host's job holds: its tasks sleep."""
*STAYING, DYING = NODES


def test_files_of_a_job_that_outlives_its_host_are_never_committed(
    tmp_path: Path, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: after the timeout others have the shards of a dead host, and each record is there once.

    Method: its agent, code server and runs are killed in the middle of a job on a Connect server
    that all hosts share. The job continues only when the others have committed the same ranges.
    """
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    holds = tmp_path / "holds"
    for node in NODES:
        (holds / node).mkdir(parents=True)
    port = free_port()
    spark = {
        "spark.master": f"local[{CORES}]",
        # The job of a client that is gone continues for longer than the test lasts.
        "spark.connect.execute.manager.detachedTimeout": "1h",
    }
    variables = {"LEASEHOLD_SPARK": f"sc://127.0.0.1:{port}", FOLDER_VARIABLE: str(holds)}
    with KafkaBroker() as broker, connect_server_at(tmp_path, port, spark), ExitStack() as stack:
        writer = Writer(broker)
        hosts = UnitHosts(
            tmp_path,
            broker,
            mariadb,
            stack,
            transform=f"{hold.__module__}.{hold.__name__}",
            variables=variables,
        )
        watched = hosts.watched
        hosts.upgrade()
        daemon = hosts.start_daemon()
        nodes = {node: hosts.start(node) for node in NODES}
        with writer:
            hosts.wait_until_shared(daemon)
            wait_for_progress(watched, daemon)
            at = watched.last_entry()
            (holds / DYING / "hold").touch()
            daemon.until(lambda: any((holds / DYING).glob("held-*")), CHANGE_S)
            attempts = attempts_of_the_dying(watched)
            watched.kill(DYING)
            daemon.until(lambda: watched.shared_by(*STAYING), CHANGE_S)
            # The journal rounds it.
            assert watched.silence_of(DYING) >= TIMEOUT_S
            wait_for_progress(watched, daemon)
            before = keys(hosts.bucket)
            (holds / DYING / "hold").unlink()

            def late() -> set[str]:
                new = keys(hosts.bucket) - before
                return {key for key in new if any(f"/{each}-" in key for each in attempts)}

            daemon.until(lambda: len(late()) > 0, CHANGE_S)
            wait_for_progress(watched, daemon)
        wait_for_all_records(watched, daemon, writer)
        named = {file.path for batch in watched.store.each_batch(KEY) for file in batch.files}
        assert [key for key in late() if any(key.endswith(path) for path in named)] == []
        changes = watched.kinds_after(at)
        assert [each for each in changes if each.startswith("evict")] == [f"evict {DYING}"]
        hosts.end(daemon, {node: nodes[node] for node in STAYING})


def attempts_of_the_dying(watched: Watched) -> set[str]:
    """Return the name prefixes of the attempts that the runs of a host are writing now."""
    intents = watched.store.batches(KEY, state=BatchState.INTENT)
    attempts = {attempt_label(each.run) for each in intents if each.holder == DYING}
    assert attempts
    return attempts
