"""A backfill with config through the webserver, beside live consumption, and the stream's hook."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.partitions import asset_op_name
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.ledger_rows import RewriteKind
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.held_stream import committed as committed_of
from tests.acceptance.replayed_stream import KEY, RECORDS_MAX, STREAM, hook_calls, stream_of
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.waiting import wait_for

SHARDS, RECORDS, NEWER = ("0", "1", "2"), 100, 30
BATCHES = 3
DONE_S = 400.0
BACKFILL = """mutation ($params: LaunchBackfillParams!) {
    launchPartitionBackfill(backfillParams: $params) {
        __typename
        ... on LaunchBackfillSuccess { backfillId }
        ... on PythonError { message } } }"""
STATUS = """query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status } } }"""

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]


def backfill(deployment: DagsterDeployment, *shards: str, **config: Any) -> str:
    """Launch the backfill that the dialog of the asset's page launches, and return its id."""
    op = asset_op_name(stream_of(deployment.settings))
    params = {
        "assetSelection": [{"path": [STREAM]}],
        "partitionNames": list(shards),
        "runConfigData": {"ops": {op: {"config": config}}},
    }
    answer = deployment.graphql(BACKFILL, params=params)["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    return answer["backfillId"]


def ended(deployment: DagsterDeployment, backfill_id: str) -> str:
    """Return the status with which a backfill ended."""

    def status() -> str | None:
        outcome = deployment.graphql(STATUS, id=backfill_id)["partitionBackfillOrError"]["status"]
        return outcome if outcome in ("COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED") else None

    return wait_for("the backfill to end", status, DONE_S)


def failures(deployment: DagsterDeployment, backfill_id: str) -> str:
    """Return the errors of the runs of a backfill."""
    query = """query ($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs {
        results { eventConnection { events {
            ... on ExecutionStepFailureEvent { error { message } } } } } } } }"""
    wanted = {"tags": [{"key": "dagster/backfill", "value": backfill_id}]}
    runs = deployment.graphql(query, filter=wanted)["runsOrError"]["results"]
    events = [event for run in runs for event in run["eventConnection"]["events"]]
    return " ".join(event["error"]["message"] for event in events if event.get("error"))


def checkpoints(store: LeaseStore) -> dict[str, str | None]:
    if KEY not in {group.key for group in store.groups()}:
        return {}
    return {row.shard: row.check_point for row in store.snapshot(KEY).shards}


def values(shard: str, begin: int, end: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{shard}-{number}".encode() for number in range(begin, end)]


def test_a_backfill_replays_shards_while_consumption_continues(tmp_path: Path) -> None:
    """Replay a span of two shards while all three continue; the third one's output stays."""
    home = tmp_path / "home"
    settings = Settings(home=home, nodes=("node-a",))
    log = LocalLog.create(home / "logs" / STREAM, len(SHARDS))
    for shard in SHARDS:
        log.append(shard, values(shard, 0, RECORDS))
    store = open_store(settings.store_url)
    output = settings.output_folder(KEY.stream, KEY.group)
    (home / "refuse").touch()
    with dagster_deployment(settings, module="tests.acceptance.replayed_definitions") as deployment:
        everything = dict.fromkeys(SHARDS, str(RECORDS))
        wait_for("all records", lambda: checkpoints(store) == everything, DONE_S)
        check_held_back(store)
        (home / "refuse").unlink()

        (home / "prefix").write_text("today ")
        first, second = str(RECORDS_MAX), str(2 * RECORDS_MAX)
        replay = backfill(deployment, "0", "1", **{"from": first, "to": second})
        for shard in SHARDS:
            log.append(shard, values(shard, RECORDS, RECORDS + NEWER))
        assert ended(deployment, replay) == "COMPLETED_SUCCESS"
        everything = dict.fromkeys(SHARDS, str(RECORDS + NEWER))
        wait_for("the newer records", lambda: checkpoints(store) == everything, DONE_S)
        generations = {b.batch_id: b.generation for b in store.batches(KEY) if b.generation}
        assert generations == {"0.1": 1, "1.1": 1}, "the same ranges, the next generation"

        check_refused(deployment, store)
        check_what_retention_removed(deployment, log, store)
        wait_for("the hook to be told of all", lambda: hook_is_done(store, home), DONE_S)

    by_shard = committed_of(store, output)
    for shard in SHARDS:
        middle = "" if shard == "2" else "today "
        assert by_shard[shard][: 2 * RECORDS_MAX] == [
            *values(shard, 0, RECORDS_MAX),
            *values(shard, RECORDS_MAX, 2 * RECORDS_MAX, middle),
        ]
        assert [value.removeprefix(b"today ") for value in by_shard[shard]] == values(
            shard, 0, RECORDS + NEWER
        )
        ledger = [(shard, b.batch_id, b.start, b.end) for b in store.batches(KEY, ShardId(shard))]
        # A call whose outcome could not be noted in time is made again at once.
        calls = [call for call, _ in groupby(hook_calls(home)) if call[0] == shard]
        assert calls == ledger, "each, in order"
    assert verify(store, KEY) == []


def check_held_back(store: LeaseStore) -> None:
    """A hook that raises delays only its own calls, and no consumption."""

    def failed() -> bool:
        waiting = store.waiting_events(KEY, EventKind.HOOK)
        return len(waiting) == len(SHARDS) and all(each.oldest.attempts for each in waiting)

    wait_for("a failed call for each shard", failed, DONE_S)
    for each in store.waiting_events(KEY, EventKind.HOOK):
        assert each.count == BATCHES
        assert each.oldest.error == "ConnectionError: amqp://***@bus refused the batch"


def hook_is_done(store: LeaseStore, home: Path) -> bool:
    return not store.waiting_events(KEY, EventKind.HOOK) and len(hook_calls(home)) >= len(SHARDS)


def check_refused(deployment: DagsterDeployment, store: LeaseStore) -> None:
    """The second replay of a shard fails while the first one is in progress."""
    store.claim_rewrite(KEY, ShardId("2"), "somebody-else", RewriteKind.REPLAY)
    second = backfill(deployment, "2", **{"from": "begin"})
    assert ended(deployment, second) == "COMPLETED_FAILED"
    assert "Run somebody-else is replaying shard 2" in failures(deployment, second)
    store.release_rewrite(KEY, ShardId("2"), "somebody-else")


def check_what_retention_removed(
    deployment: DagsterDeployment, log: LocalLog, store: LeaseStore
) -> None:
    """Batches with removed records keep their output, and the materialization reports them."""
    log.retain("1", str(RECORDS + NEWER))
    late = backfill(deployment, "1", **{"from": "begin"})
    assert ended(deployment, late) == "COMPLETED_SUCCESS"
    query = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        assetMaterializations(partitions: ["1"], limit: 1) { metadataEntries { label
            ... on IntMetadataEntry { intValue } ... on TextMetadataEntry { text } } } } } }"""
    node = deployment.graphql(query, key={"path": [STREAM]})["assetNodeOrError"]
    (shown,) = node["assetMaterializations"]
    entries = {
        entry["label"]: entry.get("intValue", entry.get("text"))
        for entry in shown["metadataEntries"]
    }
    batches = len(store.batches(KEY, ShardId("1")))
    assert (entries["replayed_batches"], entries["kept_batches"]) == (0, batches)
    assert entries["kept_until"] == str(RECORDS + NEWER)
