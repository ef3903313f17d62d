"""`leasehold where` leads from a record to its snapshot, and from a snapshot to its cursors."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.orchestration.deployed_stream import declared_stream
from tests.command_output import output_of
from tests.unit.orchestration.consumed_home import ConsumedHome, home_of_process


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    with home_of_process(tmp_path, monkeypatch, records=10) as home:
        yield home


def test_a_record_leads_to_its_snapshot_and_the_snapshot_to_cursors(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = output_of(capsys, "where", "demo", "0", "5")
    assert waiting.startswith("Record 5 of shard 0 is in batch 1, from 4 up to 8.\n")
    assert "Run run-1 committed it at " in waiting
    assert waiting.endswith("It is not published yet.\n")
    output_of(capsys, "table", "create", "demo")
    record = json.loads(output_of(capsys, "where", "demo", "0", "5", "--json"))
    assert (record["batch"], record["run"]) == (1, "run-1")
    assert (home.output / record["files"][0]).exists()
    named = ("where", "demo", "--snapshot", str(record["snapshot_id"]), "--json")
    contents = json.loads(output_of(capsys, *named))
    assert contents["publication"] == record["publication"]
    assert contents["cursors"] == {"0": "10", "1": "10"}
    assert contents["complete_until"] is not None
    assert "Complete up to event time: 20" in output_of(capsys, "where", "demo")
    stream = declared_stream("demo")
    assert stream.contents().cursors == {ShardId("0"): "10", ShardId("1"): "10"}
    assert stream.where("0", "5").snapshot_id == record["snapshot_id"]


def test_a_record_that_is_not_committed_is_a_users_mistake(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    error = output_of(capsys, "where", "demo", "0", "10", code=2)
    assert error == "The record at 10 of shard 0 of demo/default is not committed yet.\n"
