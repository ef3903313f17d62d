"""`leasehold gap` and the group's policy, from the command line."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from tests.command_output import output_of
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome, home_of_process


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Both shards consumed to 10; of shard 0, the records 10 to 15 were removed unread."""
    with home_of_process(tmp_path, monkeypatch) as home:
        home.append(5)
        home.log.retain("0", "15")
        yield home


def test_a_gap_is_listed_and_accepted(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no gaps" in output_of(capsys, "gap", "list", "demo")
    error = home.consume("run-2")[ShardId("0")].error
    assert "leasehold gap ack demo 0" in error
    (gap,) = json.loads(output_of(capsys, "gap", "list", "demo", "--json"))
    assert (gap["shard"], gap["start"], gap["end"]) == ("0", "10", "15")
    assert (gap["acknowledged"], gap["skipped"]) == (False, False)
    assert "held at it" in output_of(capsys, "gap", "list")
    assert "has no gap" in output_of(capsys, "gap", "ack", "demo", "1")
    accepted = output_of(capsys, "gap", "ack", "demo", "0")
    assert accepted == (
        "Accepted the loss of 10 to 15 of shard 0 of demo/default.\n"
        "The next run continues after this gap.\n"
    )
    assert home.consume("run-3")[ShardId("0")].error == ""
    (gap,) = json.loads(output_of(capsys, "gap", "list", "demo", "--json"))
    assert (gap["acknowledged"], gap["skipped"]) == (True, True)
    assert "no violations" in output_of(capsys, "verify")
    assert "accepted [10, 15)" in output_of(capsys, "journal", "--json")


def test_the_policy_can_be_changed_at_any_time(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home.consume("run-2")
    output_of(capsys, "group", "update", "demo", "--gap-policy", "begin")
    assert json.loads(output_of(capsys, "group", "show", "demo", "--json"))["gap_policy"] == "begin"
    assert home.consume("run-3")[ShardId("0")].error == ""
    assert home.store.snapshot(KEY).shards[0].check_point == "15"
    assert "continued after it" in output_of(capsys, "gap", "list")


def test_user_mistakes_are_one_sentence(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    del home
    for mistake in (
        ("gap", "ack", "demo", "9"),
        ("gap", "ack", "nothing", "0"),
        ("gap", "list", "nothing"),
        ("gap", "ack", "demo", "../0"),
        ("group", "update", "demo", "--gap-policy", "jump"),
    ):
        error = output_of(capsys, *mistake, code=2)
        assert error.count("\n") == 1, error
