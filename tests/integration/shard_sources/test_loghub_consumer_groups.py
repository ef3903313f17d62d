"""Checkpoints move between a consumer group of the service and ours, to the record."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.source import Limits, Position
from tests.command_output import output_of
from tests.declared import declare
from tests.integration.shard_sources.consuming_home import (
    ConsumingHome,
    assert_each_once,
    committed,
    do_as_the_page_says,
)
from tests.sources.world import START, STEP
from tests.sources.worlds.loghub import LOGSTORE, PROJECT, LogHubWorld, written_with_sdk
from tests.waiting import wait_for

OLD = "old-consumers"


class Deployment(ConsumingHome):
    """A home whose stream is a logstore with two shards of 5 LogGroups of 4 records."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = LogHubWorld(folder)
        options = {
            "endpoint": self.world.server.endpoint,
            "project": PROJECT,
            "value_field": "content",
            "credentials_uri": self.world.server.credentials_uri,
        }
        super().__init__(folder, monkeypatch, LOGSTORE, "loghub", self.world.source, options)
        self.sdk: Any = self.world.writer
        for shard in ("0", "1"):
            self.append(shard, 5)

    def append(self, shard: str, groups: int) -> None:
        entry = self.world.logstore.shard(shard)
        begin = 4 * len(entry.groups)
        for number in range(begin, begin + 4 * groups, 4):
            logs = [
                (START + (number + n) * STEP, [("content", f"{shard}:{number + n}".encode())])
                for n in range(4)
            ]
            written_with_sdk(self.sdk, entry.begin, logs)

    def service_cursors(self) -> dict[str, str | None]:
        """Our checkpoints, as the service writes them."""
        return {
            shard: cursor and GroupCursor.parse(ShardId(shard), cursor).service
            for shard, cursor in self.checkpoints().items()
        }

    def service_checkpoints(self, group: str) -> dict[int, str]:
        answer = self.sdk.get_check_point(PROJECT, LOGSTORE, group)
        return {row["shard"]: row["checkpoint"] for row in answer.get_consumer_group_check_points()}

    def read_by_consumers(self, shard: int, cursor: str) -> list[bytes]:
        """Return the values that the service's own consumers would read from a checkpoint on."""
        answer = self.sdk.pull_logs(PROJECT, LOGSTORE, shard, cursor)
        return [
            content.Value.encode()
            for group in answer.get_loggroup_list().LogGroups
            for log in group.Logs
            for content in log.Contents
        ]


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Deployment]:
    made = Deployment(tmp_path, monkeypatch)
    yield made
    made.world.close()


def old_consumers(deployment: Deployment, *, groups: int) -> str:
    """A consumer of the service has read some LogGroups of shard 0, and none of shard 1."""
    sdk = deployment.sdk
    sdk.create_consumer_group(PROJECT, LOGSTORE, OLD, 30, True)
    cursor = sdk.get_begin_cursor(PROJECT, LOGSTORE, 0).get_cursor()
    cursor = sdk.pull_logs(PROJECT, LOGSTORE, 0, cursor, count=groups).get_next_cursor()
    sdk.heart_beat(PROJECT, LOGSTORE, OLD, "consumer-1")
    sdk.update_check_point(PROJECT, LOGSTORE, OLD, 0, cursor, "consumer-1", False)
    return cursor


def test_consumption_continues_where_a_loghub_group_stopped(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    cursor = old_consumers(deployment, groups=2)
    do_as_the_page_says(capsys, "The steps", orders=LOGSTORE)
    refused = output_of(capsys, "checkpoint", "import", LOGSTORE, "--consumer-group", OLD, code=2)
    assert "hold shards 0, 1" in refused
    assert "add --stopped" in refused
    assert deployment.service_cursors() == {}
    do_as_the_page_says(capsys, "A consumer group of LogHub", visits=LOGSTORE)
    assert deployment.service_cursors() == {"0": cursor, "1": None}
    again = output_of(
        capsys, "checkpoint", "import", LOGSTORE, "--consumer-group", OLD, "--stopped"
    )
    assert "Imported 0" in again
    deployment.consume("run-1")
    assert committed(capsys, LOGSTORE, "0") == [f"0:{number}" for number in range(8, 20)]
    assert committed(capsys, LOGSTORE, "1") == [f"1:{number}" for number in range(20)]
    assert "no violations" in output_of(capsys, "verify")


def test_each_record_is_read_once_after_an_import_and_an_export(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", LOGSTORE)
    deployment.consume("run-1", 20)
    deployment.append("0", 2)
    names = {"visits": LOGSTORE, "new-consumers": "new"}
    do_as_the_page_says(capsys, "A consumer group of LogHub", block=1, **names)
    assert deployment.service_checkpoints("new") == {
        int(shard): cursor for shard, cursor in deployment.service_cursors().items()
    }
    stored = deployment.service_checkpoints("new")
    assert deployment.read_by_consumers(0, stored[0]) == [b"0:%d" % n for n in range(20, 28)]
    assert deployment.read_by_consumers(1, stored[1]) == []
    # Its consumers read one LogGroup, and we take over again.
    following = deployment.sdk.pull_logs(PROJECT, LOGSTORE, 0, stored[0], count=1)
    deployment.sdk.update_check_point(PROJECT, LOGSTORE, "new", 0, following.get_next_cursor())
    back = {"visits": LOGSTORE, "old-consumers": "new"}
    do_as_the_page_says(capsys, "A consumer group of LogHub", block=0, **back)
    deployment.consume("run-2")
    assert committed(capsys, LOGSTORE, "0") == [f"0:{n}" for n in (*range(20), *range(24, 28))]


def test_a_checkpoint_within_a_group_is_exported_only_on_request(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "group", "create", LOGSTORE)
    source, shard = deployment.source, ShardId("0")
    begin = source.cursor_at(shard, Position.BEGIN)
    within = source.plan(shard, begin, Limits(records_max=3)).end
    assert within == f"{begin}.3"
    deployment.consume("run-0", 20)
    output_of(capsys, "checkpoint", "set", LOGSTORE, "0", "begin", "--force")
    deployment.store.force_checkpoint(deployment.key, shard, within, observer="test", reason="test")
    refused = output_of(capsys, "checkpoint", "export", LOGSTORE, code=2)
    assert "shards 0" in refused
    assert "--repeat" in refused
    assert deployment.sdk.list_consumer_group(PROJECT, LOGSTORE).get_count() == 0
    out = output_of(capsys, "checkpoint", "export", LOGSTORE, "--repeat")
    assert "Shards that start again at the begin of a LogGroup: 0." in out
    begun = GroupCursor.parse(shard, begin).service
    assert deployment.service_checkpoints("default")[0] == begun


@pytest.mark.long
def test_an_import_waits_until_a_worker_of_the_sdk_is_stopped(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from aliyun.log.consumer import (
        ConsumerProcessorBase,
        ConsumerWorker,
        CursorPosition,
        LogHubConfig,
    )
    from aliyun.log.util import Util

    # The SDK does not see an address beside a port, and would put the project's name before it.
    monkeypatch.setattr(Util, "is_row_ip", lambda _: True)
    old: list[str] = []

    class Processor(ConsumerProcessorBase):
        def process(self, log_groups: Any, check_point_tracker: Any) -> None:
            for group in log_groups.LogGroups:
                old.extend(log.Contents[0].Value for log in group.Logs)
            self.save_checkpoint(check_point_tracker)

    config = LogHubConfig(
        deployment.world.server.endpoint,
        "LTAItest",
        "secret-of-test",
        PROJECT,
        LOGSTORE,
        OLD,
        f"{OLD}-1",
        cursor_position=CursorPosition.BEGIN_CURSOR,
        heartbeat_interval=1,
        data_fetch_interval=1,
        max_fetch_log_group_size=2,
    )
    worker = ConsumerWorker(Processor, config)
    worker.start()
    wait_for("the old consumer", lambda: len(old) >= 20, 30)
    do_as_the_page_says(capsys, "The steps", orders=LOGSTORE)
    taken = ("checkpoint", "import", LOGSTORE, "--consumer-group", OLD)
    assert "hold shards 0, 1" in output_of(capsys, *taken, code=2)
    worker.shutdown()
    worker.join(30)
    assert not worker.is_alive()
    for shard in ("0", "1"):
        deployment.append(shard, 3)
    do_as_the_page_says(capsys, "A consumer group of LogHub", visits=LOGSTORE)
    deployment.consume("run-1")
    log = [f"{shard}:{number}" for shard in (0, 1) for number in range(32)]
    assert_each_once(old, committed(capsys, LOGSTORE), log)
    assert "no violations" in output_of(capsys, "verify")


def test_errors_of_the_service_and_of_the_user_are_one_sentence(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output_of(capsys, "group", "create", LOGSTORE)
    old_consumers(deployment, groups=1)
    unknown = output_of(
        capsys, "checkpoint", "import", LOGSTORE, "--consumer-group", "nobody", code=2
    )
    assert f"its groups are: {OLD}" in unknown
    declare(load_settings().home, LOGSTORE)
    refused = output_of(capsys, "checkpoint", "export", LOGSTORE, code=2)
    assert "only for streams of: kafka, kinesis, loghub" in refused


def test_a_group_with_consumers_is_imported_only_on_request(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    cursor = old_consumers(deployment, groups=3)
    output_of(capsys, "group", "create", LOGSTORE)
    output_of(capsys, "checkpoint", "import", LOGSTORE, "--consumer-group", OLD, "--live")
    assert deployment.service_cursors()["0"] == cursor


def test_an_expired_checkpoint_becomes_a_gap(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    old_consumers(deployment, groups=1)
    deployment.world.logstore.shard("0").expire(3)
    output_of(capsys, "group", "create", LOGSTORE)
    taken = ("checkpoint", "import", LOGSTORE, "--consumer-group", OLD, "--stopped")
    assert "add --gaps" in output_of(capsys, *taken, code=2)
    assert deployment.service_cursors() == {"0": None, "1": None}
    output_of(capsys, *taken, "--gaps")
    deployment.consume("run-1")
    (gap,) = json.loads(output_of(capsys, "gap", "list", "--json"))
    assert gap["shard"] == "0"
    assert committed(capsys, LOGSTORE, "0") == []
