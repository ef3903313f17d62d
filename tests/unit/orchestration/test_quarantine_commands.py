"""`leasehold quarantine`: the listed records, and the output that a retry replaces; without
Spark.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dagster_leasehold.assets.rewriting.replay
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from tests.command_output import output_of
from tests.environment import forget_settings
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

DECLARATION = """
from pathlib import Path
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.shard_sources.local_log import LocalLog

def todays(records):
    return records

streams = [ShardStream("demo", LocalLog(Path("home/logs/demo")), transform=todays)]
"""
NO_TEXT = b"\x00\xff bad"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Two shards of batches of four; yesterday's transform refused records with `bad`."""
    forget_settings(monkeypatch)
    # Another test's module of this name declares other streams.
    monkeypatch.delitem(sys.modules, "declared_streams", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    (tmp_path / "declared_streams.py").write_text(DECLARATION)
    home = ConsumedHome(tmp_path / "home")
    home.append(4)
    home.log.append("0", [b"4", b"bad 5", b"6", NO_TEXT, b"8"])
    home.log.append("1", [b"bad 4\x1b[31m" + b"x" * 5_000])
    home.sweeper.refuses = lambda value: b"bad" in value
    home.consume("run-1")
    monkeypatch.setattr(
        dagster_leasehold.assets.rewriting.replay, "SparkSweeper", lambda **_: home.sweeper
    )
    yield home
    home.store.close()


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output_of(capsys, "quarantine", "list", "demo", "--json", *arguments))


def test_each_record_is_listed_with_its_place_bytes_and_error(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = listed(capsys)
    assert (listing["group"], listing["quarantined"]) == ("demo/default", 3)
    places = [(row["shard"], row["batch_id"], row["cursor"]) for row in listing["records"]]
    assert places == [("0", "0.1", "5"), ("0", "0.1", "7"), ("1", "1.1", "4")]
    assert listing["records"][0]["value"] == "bad 5"
    assert b64decode(listing["records"][1]["value_base64"]) == NO_TEXT
    assert {row["error"] for row in listing["records"]} == {"it is refused"}
    shown = output_of(capsys, "quarantine", "list", "demo")
    assert "3 of 3 records" in shown
    assert "\x1b" not in shown


def test_records_in_quarantine_are_filtered(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [row["cursor"] for row in listed(capsys, "1")["records"]] == ["4"]
    assert listed(capsys, "1")["quarantined"] == 1
    assert [row["cursor"] for row in listed(capsys, "--limit", "1")["records"]] == ["5"]
    time = listed(capsys)["records"][2]["event_time"]
    assert "4" in [row["cursor"] for row in listed(capsys, "--since", time)["records"]]
    assert listed(capsys, "--since", "2199-01-01T00:00:00Z")["records"] == []


def test_a_retry_replays_only_batches_with_quarantined_records(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home.sweeper.refuses = lambda value: value == NO_TEXT
    home.sweeper.sweeps.clear()
    done = json.loads(
        output_of(capsys, "quarantine", "retry", "demo", "--module", "declared_streams", "--json")
    )
    ranges = [(r.shard, r.start, r.end) for sweep in home.sweeper.sweeps for r in sweep]
    assert ranges == [("0", "4", "8"), ("1", "4", "5")]
    assert [(row["batches"], row["quarantined"]) for row in done["shards"]] == [(1, 1), (1, 0)]
    generations = {b.batch_id: b.generation for b in home.store.batches(KEY)}
    assert generations == {"0.0": 0, "0.1": 1, "0.2": 0, "1.0": 0, "1.1": 1}
    assert [row["cursor"] for row in listed(capsys)["records"]] == ["7"]
    values = [json.loads(line) for line in output_of(capsys, "cat", "demo", "0").splitlines()]
    assert [row["cursor"] for row in values] == ["0", "1", "2", "3", "4", "5", "6", "8"]
    assert "no violations" in output_of(capsys, "verify")


def test_a_failed_retry_changes_nothing(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    from dagster_leasehold.assets.errors import TransformError

    home.sweeper.results = {ShardId("0"): TransformError("today's transform is broken.")}
    error = output_of(capsys, "quarantine", "retry", "demo", "--module", "declared_streams", code=2)
    assert "Shard 0 keeps its old output: today's transform is broken." in error
    assert [row["cursor"] for row in listed(capsys)["records"]] == ["5", "7", "4"], (
        "the other shard was tried, and refused again"
    )


def test_an_empty_quarantine_is_reported(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home.sweeper.refuses = lambda _: False
    output_of(capsys, "quarantine", "retry", "demo", "-m", "declared_streams")
    assert "no records in quarantine" in output_of(capsys, "quarantine", "list")
    home.sweeper.sweeps.clear()
    output_of(capsys, "quarantine", "retry", "demo", "-m", "declared_streams")
    assert home.sweeper.sweeps == []


def test_user_mistakes_are_one_sentence(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken_module.py").write_text("raise ValueError('boom\\nsecond line')")
    retry = ("quarantine", "retry", "demo")
    for mistake, hint in {
        ("quarantine", "list", "nothing"): "declares no stream",
        ("quarantine", "list", "demo", "9"): "no shard",
        ("quarantine", "list", "--since", "yesterday"): "is not a time",
        ("quarantine", "list", "--limit", "0"): "limit",
        retry: "is declared without a transform",
        (*retry[:2], "other", "-m", "declared_streams"): "declares no stream",
        (*retry, "-m", "no_such_module"): "cannot be imported",
        (*retry, "-m", "broken_module"): "ValueError: boom",
        (*retry, "-m", "declared_streams", "--group", "other"): "no consumer group",
        (*retry, "-m", "declared_streams", "--from", "9", "--to", "1"): "before it starts",
    }.items():
        error = output_of(capsys, *mistake, code=2)
        assert error.count("\n") == 1, error
        assert hint in error
    assert {batch.generation for batch in home.store.batches(KEY)} == {0}


def test_a_held_record_is_named_by_status_and_skipped_by_a_command(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = ShardId("0")
    assert output_of(capsys, "quarantine", "skip", "demo", "0") == (
        "No record blocks shard 0 of demo/default.\n"
    )
    opened = home.store.open_tenure(KEY, shard, NODE, "run-9")
    assert isinstance(opened, Opened)
    held = replace(Suspicion(failure="It hangs.").within(1, alone=True), holds_shard=True)
    home.store.suspect(opened.tenure, held, abandon=False)
    sentence = "Shard 0 of demo/default is held at cursor 9, because the record there stops every"
    shown = output_of(capsys, "status")
    assert sentence in " ".join(shown.split())
    shards = json.loads(output_of(capsys, "status", "--json"))["shards"]
    assert shards[1]["obstacle"] == ""
    assert shards[0]["obstacle"].startswith(sentence)
    assert output_of(capsys, "quarantine", "skip", "demo", "0") == (
        "The next run quarantines the record at cursor 9 of shard 0 of demo/default, and continues "
        "after it.\n"
    )
    (row, _) = home.store.snapshot(KEY).shards
    assert row.suspicion == replace(held, skip=True)
