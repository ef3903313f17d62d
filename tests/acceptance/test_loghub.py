"""LogHub on real processes: Dagster's daemon, Spark; a split, a merge and a kill on the way."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from dagster_leasehold.assets.partitions import PROCESS_TAG
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.loghub.credentials import KEY_ID, KEY_SECRET
from tests.dagster_deployment import dagster_deployment
from tests.declared import declare, stream_text
from tests.ledger_output import ledger_records
from tests.sls_server.server import SlsServer
from tests.sls_server.signatures import Request
from tests.sources.world import START, STEP
from tests.sources.worlds.loghub import LOGSTORE, PROJECT, plain_client, written_with_sdk
from tests.waiting import wait_for

KEY = GroupKey.parse("default", LOGSTORE)
CANARY = "secret-canary-93ab"
GROUPS, RECORDS_OF_GROUP = 20, 25
LIMITS, PACE = "Limits(records_max=200)", "Pace(commit_interval_s=0, idle_limit_s=1)"
CONSUMED_S = 420.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]


class HeldReads:
    """Keeps Spark's reads, which come after an intent alone, waiting until they are released."""

    def __init__(self) -> None:
        self.intended: Callable[[], bool] = lambda: False
        self.released = threading.Event()
        self.waiting = threading.Event()

    def __call__(self, request: Request) -> None:
        if "end_cursor" in request.query and not self.released.is_set() and self.intended():
            self.waiting.set()
            self.released.wait(CONSUMED_S)


def write(server: SlsServer, shard: int, first: int) -> list[str]:
    """Fill a shard through the SDK; returns its values."""
    client = plain_client(server.endpoint)
    values: list[str] = []
    for group in range(GROUPS):
        begin = first + group * RECORDS_OF_GROUP
        made = [f"{shard}-{begin + number}" for number in range(RECORDS_OF_GROUP)]
        logs = [(START + STEP * begin, [("content", value.encode())]) for value in made]
        written_with_sdk(client, server.logstores[LOGSTORE].shards[shard].begin, logs)
        values += made
    return values


def committed(store: LeaseStore, output: Path) -> dict[str, list[str]]:
    by_shard: dict[str, list[str]] = {}
    for batch in ledger_records(store, KEY, output):
        shards, values = batch.column("shard_id").to_pylist(), batch.column("value").to_pylist()
        for shard, value in zip(shards, values, strict=True):
            by_shard.setdefault(shard, []).append(json.loads(value)["content"])
    return by_shard


def over(store: LeaseStore) -> set[str]:
    return {row.shard for row in store.snapshot(KEY).shards if row.state is ShardState.OVER}


def test_a_split_a_merge_and_a_kill_in_the_middle_leave_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the service delays the first Spark job. Then a shard is split, one child is merged
    with its neighbour, records are written to all shards, and the run is killed.
    """
    home = tmp_path / "home"
    settings = Settings(home=home)
    server = SlsServer(PROJECT)
    reads = server.before = HeldReads()
    logstore = server.create(LOGSTORE)
    expected = {"0": write(server, 0, 0), "1": write(server, 1, 0)}
    server.keys["LTAIcanary"] = (CANARY, "")
    monkeypatch.setenv(KEY_ID, "LTAIcanary")
    monkeypatch.setenv(KEY_SECRET, CANARY)
    options = {"endpoint": server.endpoint, "project": PROJECT}
    declare(home, stream_text(LOGSTORE, "loghub", options=options, limits=LIMITS, pace=PACE))
    store = open_store(settings.store_url, upgrade=True)
    reads.intended = lambda: bool(store.batches(KEY, state=BatchState.INTENT))
    try:
        started = dagster_deployment(settings)
        with started, DagsterInstance.from_config(str(settings.dagster_home)) as instance:
            wait_for("a read of Spark's", reads.waiting.is_set, CONSUMED_S)
            (killed,) = {batch.run for batch in store.batches(KEY, state=BatchState.INTENT)}
            middle = f"{int(logstore.shards[0].end, 16) // 2:032x}"
            sdk = plain_client(server.endpoint)
            sdk.split_shard(PROJECT, LOGSTORE, 0, middle)
            expected |= {name: write(server, int(name), 0) for name in ("2", "3")}
            sdk.merge_shard(PROJECT, LOGSTORE, 3)
            expected["4"] = write(server, 4, 0)
            run = instance.get_run_by_id(killed)
            assert run is not None
            os.kill(int(run.tags[PROCESS_TAG].split("|")[1]), signal.SIGKILL)
            reads.released.set()

            def consumed() -> bool:
                try:
                    by_shard = committed(store, settings.output_folder(KEY.stream, KEY.group))
                except LeaseholdError:
                    return False
                return sum(map(len, by_shard.values())) >= sum(map(len, expected.values()))

            wait_for("all records", consumed, CONSUMED_S)
            wait_for("the parents to be over", lambda: over(store) == {"0", "1", "3"}, CONSUMED_S)
            by_shard = committed(store, settings.output_folder(KEY.stream, KEY.group))
            assert by_shard == expected
            assert max(Counter(v for values in by_shard.values() for v in values).values()) == 1
            assert verify(store, KEY) == []
            assert killed not in {batch.run for batch in store.batches(KEY)}

            def noticed() -> bool:
                dead = instance.get_run_by_id(killed)
                return dead is not None and dead.status is DagsterRunStatus.FAILURE

            wait_for("the killed run to be known as failed", noticed, CONSUMED_S)
    finally:
        reads.released.set()
        store.close()
        server.close()
    for path in home.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
