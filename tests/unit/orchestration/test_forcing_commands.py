"""`leasehold checkpoint set --force`, `group drain` and weighted groups, from the command line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.lease_store.draining import Draining
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Intent
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.commands import group_pausing
from dagster_leasehold.orchestration.commands.group_pausing import say_open
from tests.command_output import output_of
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome, home_of_process

ZERO, ONE = ShardId("0"), ShardId("1")
PATIENCE_S = 20.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Two shards of ten records, consumed in batches of four."""
    with home_of_process(tmp_path, monkeypatch) as home:
        yield home


def cat(capsys: pytest.CaptureFixture[str], shard: str) -> list[str]:
    lines = output_of(capsys, "cat", "demo").splitlines()
    return [record["value"] for record in map(json.loads, lines) if record["shard_id"] == shard]


def claim_free(home: ConsumedHome) -> None:
    shards = home.store.snapshot(KEY).shards
    free = {row.shard: (NODE, row.lease_id) for row in shards if row.state is ShardState.NOT_ALLOC}
    home.store.claim(KEY, free, observer="test", reason="test")


@pytest.mark.parametrize("cursor", ["begin", "0", "4", "8", "end"])
def test_records_that_are_read_again_are_in_the_output_once(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], cursor: str
) -> None:
    output_of(capsys, "checkpoint", "set", "demo", "0", cursor, "--force")
    home.append(3)
    assert home.consume("run-2")[ZERO].stopped is StopReason.CAUGHT_UP
    for shard in ("0", "1"):
        assert cat(capsys, shard) == [f"{shard}:{number}" for number in range(13)]
    assert "no violations" in output_of(capsys, "verify")


def test_a_cursor_inside_a_batch_is_refused_with_the_nearest_possible_ones(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = output_of(capsys, "checkpoint", "set", "demo", "0", "6", "--force", code=2)
    assert "'6' is inside batch 0.1 of group demo/default" in sentence
    assert "'4', where it starts, or to '8', where it ends" in sentence
    assert len(sentence.splitlines()) == 1
    assert cat(capsys, "0") == [f"0:{number}" for number in range(10)]


def test_withdrawn_files_are_kept_for_their_readers(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their age counts from now on: a reader that listed them just before may finish."""
    batches = home.store.batches(KEY, ZERO)
    paths = [home.output / file.path for batch in batches for file in batch.files]
    for path in paths:
        os.utime(path, (1, 1))
    output_of(capsys, "checkpoint", "set", "demo", "0", "4", "--force")
    assert "0 files" in output_of(capsys, "vacuum", "demo", "--older-than", "1h")
    assert [path.exists() for path in paths] == [True, True, True]
    assert [path.stat().st_mtime > 1 for path in paths] == [False, True, True]
    for path in paths:
        os.utime(path, (1, 1))
    output_of(capsys, "vacuum", "demo", "--older-than", "1h")
    assert [path.exists() for path in paths] == [True, False, False]


def test_a_finished_parent_is_reopened_only_with_the_option(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(capsys, "shard", "split", "demo", "0")
    home.store.sync_shards(KEY, home.log.list_shards(), observer="test")
    home.consume("run-2")
    children = [str(listing.shard) for listing in home.log.list_shards() if listing.parents]
    claim_free(home)
    for child in children:
        home.log.append(child, [b"%s:%d" % (child.encode(), number) for number in range(5)])
    home.consume("run-3")

    refused = output_of(capsys, "checkpoint", "set", "demo", "0", "begin", "--force", code=2)
    assert f"({', '.join(children)})" in refused
    assert "cascade" in refused

    done = output_of(
        capsys, "checkpoint", "set", "demo", "0", "begin", "--force", "--reopen", "cascade"
    )
    assert f"These shards are also read again: {', '.join(children)}." in done
    assert cat(capsys, "0") == cat(capsys, children[0]) == []
    for run in ("run-4", "run-5"):
        claim_free(home)
        home.consume(run)
    assert cat(capsys, "0") == [f"0:{number}" for number in range(10)]
    for child in children:
        assert cat(capsys, child) == [f"{child}:{number}" for number in range(5)]
    assert "no violations" in output_of(capsys, "verify")


def test_a_drain_waits_for_the_batch_in_progress(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain starts in the middle of a run's first batch; the run stops after it."""
    home.append(20)
    codes: list[int] = []
    draining = threading.Thread(target=lambda: codes.append(main(["group", "drain", "demo"])))
    printed = threading.Event()

    def say_and_tell(outcome: Draining) -> None:
        say_open(outcome)
        printed.set()

    def drain() -> None:
        home.sweeper.before = lambda: None
        draining.start()
        assert printed.wait(PATIENCE_S), "The drain did not say what is open."

    monkeypatch.setattr(group_pausing, "say_open", say_and_tell)

    home.sweeper.before = drain
    reports = home.consume("run-2")
    draining.join(PATIENCE_S)
    assert codes == [0]
    out = capsys.readouterr().out
    assert "2 of 2 shards are still open: 0, 1." in out
    assert "demo/default was drained after" in out
    assert {report.stopped for report in reports.values()} == {StopReason.PAUSED}
    assert [report.batches for report in reports.values()] == [1, 1]

    outcome = json.loads(output_of(capsys, "group", "drain", "demo", "--json"))
    assert (outcome["drained"], outcome["paused"]) == (True, True)
    assert [(shard["shard"], shard["check_point"]) for shard in outcome["shards"]] == [
        ("0", "14"),
        ("1", "14"),
    ]
    assert home.consume("run-3")[ZERO].stopped is StopReason.NOT_HELD
    output_of(capsys, "group", "resume", "demo")
    home.consume("run-4")
    assert cat(capsys, "0") == [f"0:{number}" for number in range(30)]


def test_a_drain_that_times_out_names_open_shards(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = home.store.open_tenure(KEY, ONE, NODE, "dead-run")
    assert isinstance(opened, Opened)
    home.store.record_intents([Intent(opened.tenure, opened.next_sequence, "10", "12")])
    outcome = json.loads(
        output_of(capsys, "group", "drain", "demo", "--timeout", "0.1", "--json", code=1)
    )
    assert not outcome["drained"]
    zero, one = outcome["shards"]
    assert (zero["drained"], one["drained"]) == (True, False)
    assert (one["run"], one["holder"]) == ("dead-run", "a")
    assert one["intent"] == {"batch": "1.3", "start": "10", "end": "12"}
    out = output_of(capsys, "group", "drain", "demo", "--timeout", "0", code=1)
    assert "these shards are still open: 1." in " ".join(out.split())

    home.store.leave(KEY, NODE, "a-1")
    out = output_of(capsys, "group", "drain", "demo", "--timeout", "0")
    assert "Shard 1: a run started batch 1.3 (10 to 12) and ended before it committed" in " ".join(
        out.split()
    )


def test_a_group_can_be_weighted(home: ConsumedHome, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(capsys, "group", "update", "demo", "--weighted")
    assert json.loads(output_of(capsys, "group", "show", "demo", "--json"))["weighted"] is True
    output_of(capsys, "group", "update", "demo", "--by-count")
    assert json.loads(output_of(capsys, "group", "show", "demo", "--json"))["weighted"] is False
    output_of(capsys, "group", "create", "demo", "--group", "other", "--weighted")
    assert (
        json.loads(output_of(capsys, "group", "show", "demo", "--group", "other", "--json"))[
            "weighted"
        ]
        is True
    )


def test_a_plan_by_load_shows_the_loads(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shard 0 has far more records than shard 1."""
    output_of(capsys, "group", "update", "demo", "--weighted")
    home.log.append("0", [b"x"] * 200)
    home.consume("run-2")
    table = output_of(capsys, "plan", "--explain")
    assert "Shards and load per node after the moves" in table
    planned = json.loads(output_of(capsys, "plan", "--json"))["plan"]
    ((node, load),) = planned["loads"]
    assert node == "a"
    assert load > 2
