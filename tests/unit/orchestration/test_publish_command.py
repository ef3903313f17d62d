"""`leasehold publish` checks held output again, or publishes it with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_leasehold.orchestration.command_line import main
from tests.declared import declare, stream_text
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

CHECK = "publication_check(name='fifth', sql=\"cursor != '5'\")"


@pytest.fixture
def home(tmp_path: Path) -> ConsumedHome:
    """A home with a check that record 5 of both shards fails, and nothing published."""
    table = f"TableSettings(publication_checks=[{CHECK}])"
    declare(tmp_path / "home", stream_text("demo", iceberg=table))
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    return home


def test_held_output_is_published_with_a_reason(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--home", str(home.settings.home)]
    assert main(["publish", "demo", *at, "--json"]) == 1
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["batches"], outcome["records"], outcome["overridden"]) == (2, 8, [])
    held = [(each["shard"], each["records"], each["check"]) for each in outcome["held"]]
    assert held == [("0", 6, "fifth"), ("1", 6, "fifth")]
    assert main(["status", "demo", *at]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "it has all committed output that is not held" in output
    assert "Shard 0: 2 committed batches with 6 records are not published." in output
    assert "1 of 4 records fail: cursor != '5'" in output
    assert main(["status", "demo", *at, "--json"]) == 0
    state = json.loads(capsys.readouterr().out)["publication"]
    assert (state["published_records"], state["waiting_batches"], len(state["held"])) == (8, 0, 2)
    assert main(["publish", "demo", "--override", *at]) == 2
    assert "--override needs a reason" in capsys.readouterr().err
    assert main(["publish", "demo", "0", "--override", "--reason", "known", *at]) == 1
    assert "Overrode the checks of shards 0." in capsys.readouterr().out
    assert main(["publish", "demo", "--override", "--reason", "known", *at]) == 0
    assert not home.store.held_output(KEY)
    assert main(["verify", *at]) == 0
    entries = [each for each in home.store.journal(KEY) if each.kind == "override"]
    assert [(each.shard, each.reason[:7]) for each in entries] == [
        ("0", "known ("),
        ("1", "known ("),
    ]


def test_a_removed_check_ends_its_holds(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--home", str(home.settings.home)]
    assert main(["publish", "demo", *at]) == 1
    capsys.readouterr()
    declare(home.settings.home, stream_text("demo"))
    assert main(["publish", "demo", *at, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] == 2
