"""Output that has expired, as commands and readers meet it: where committed output begins."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import dagster_leasehold.assets.rewriting.replay
from dagster_leasehold.assets.errors import OutputUnreadable
from dagster_leasehold.assets.output.attempts import touch_replaced
from dagster_leasehold.assets.output.expired_output import refuse_expired_times
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.pruning import OutputExpiry, expire
from dagster_leasehold.lease_store.roles.retention import Retention
from dagster_leasehold.orchestration.command_line import main
from tests.declared import declare, stream_text
from tests.environment import forget_settings
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

ZERO, ONE = ShardId("0"), ShardId("1")
BEGINS = (
    "Committed output of shard {} of demo/default begins at cursor 8 (batch 2): 2 batches before "
    "it, with 8 records, have expired."
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Two shards of ten records, in three batches each, whose events are delivered."""
    forget_settings(monkeypatch)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    for kind in EventKind:
        events = home.store.pending_events(KEY, kind=kind)
        home.store.mark_delivered(KEY, [event.sequence for event in events])
    monkeypatch.setattr(
        dagster_leasehold.assets.rewriting.replay, "SparkSweeper", lambda **_: home.sweeper
    )
    yield home
    home.store.close()


@pytest.fixture
def years_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ages count from two years after the newest entries."""
    original = Retention.reference_time

    def later(store: Retention, key: GroupKey) -> datetime | None:
        reference = original(store, key)
        return None if reference is None else reference + timedelta(days=730)

    monkeypatch.setattr(Retention, "reference_time", later)


def forget(home: ConsumedHome) -> None:
    """Forget all output that may be forgotten: two of three batches of each shard."""
    output = OutputExpiry(timedelta(days=-1), partial(touch_replaced, home.place))
    report = expire(home.store, KEY, output)
    assert (report.expired, report.failures) == (4, [])


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def age(home: ConsumedHome) -> None:
    then = time.time() - 7_200
    for path in home.output.rglob("*"):
        os.utime(path, (then, then))


@pytest.mark.usefixtures("years_later")
def test_vacuum_expires_output_and_removes_its_old_files(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    age(home)
    output, _ = run(capsys, "vacuum", "demo")
    assert "Removed 0 files" in output
    assert "ledger rows" not in output, "output is kept for good unless a setting says otherwise"
    planned, _ = run(capsys, "vacuum", "demo", "--expire-days", "30", "--dry-run")
    assert "Would drop 6 ledger rows of demo/default whose output is older than 30" in planned
    assert len(home.store.batches(KEY)) == 6
    output, _ = run(capsys, "vacuum", "demo", "--expire-days", "30")
    assert "Dropped 4 ledger rows" in output
    assert "Removed 0 files" in output, "somebody may have listed them a moment ago"
    assert "Kept 2 committed files, 4 younger files" in output
    age(home)
    output, _ = run(capsys, "vacuum", "demo", "--expire-days", "30", "--json")
    answer = json.loads(output)
    assert (answer["expired"], len(answer["report"]["removed"])) == (0, 4)
    output, _ = run(capsys, "verify")
    assert BEGINS.format(0) in output
    assert "no violations" in output


@pytest.mark.usefixtures("years_later")
def test_the_streams_own_setting_counts(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(home.settings.home, stream_text("demo", retention="Retention(output_days=90)"))
    output, _ = run(capsys, "vacuum", "demo")
    assert "Dropped 4 ledger rows of demo/default whose output is older than 90 days." in output
    declare(home.settings.home, stream_text("demo", retention="Retention(output_days=0.5)"))
    _, error = run(capsys, "vacuum", "demo", code=2)
    assert "output_days" in error
    _, error = run(capsys, "vacuum", "demo", "--expire-days", "0", code=2)
    assert "output_days" in error


def test_cat_says_where_output_begins(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    forget(home)
    lines, error = run(capsys, "cat", "demo")
    assert [json.loads(line)["value"] for line in lines.splitlines()] == [
        "0:8",
        "0:9",
        "1:8",
        "1:9",
    ]
    assert error.splitlines() == [BEGINS.format(0), BEGINS.format(1)]
    _, error = run(capsys, "cat", "demo", "1")
    assert error.splitlines() == [BEGINS.format(1)]
    file = tmp_path / "all.parquet"
    output, error = run(capsys, "cat", "demo", "--parquet", str(file), "--json")
    assert json.loads(output)["expired"]["0"]["records"] == 8
    assert error.splitlines() == [BEGINS.format(0), BEGINS.format(1)]


def test_a_replay_of_expired_output_is_refused(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(home)
    _, error = run(capsys, "replay", "demo", "0", "--from", "4", "--to", "9", code=2)
    assert "begins at 8: earlier output has expired" in error
    output, _ = run(capsys, "replay", "demo", "0", "--from", "8", "--json")
    (report,) = json.loads(output)["shards"]
    assert (report["batches"], report["expired_until"]) == (1, None)
    output, _ = run(capsys, "replay", "demo", "0", "--json")
    (report,) = json.loads(output)["shards"]
    assert (report["batches"], report["expired_until"]) == (1, "8")


def test_a_forced_checkpoint_before_expired_output_is_refused(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    forget(home)
    _, error = run(capsys, "checkpoint", "set", "demo", "0", "4", "--force", code=2)
    assert "begins at '8': earlier output has expired" in error
    run(capsys, "checkpoint", "set", "demo", "0", "8", "--force")
    home.consume("run-2")
    lines, _ = run(capsys, "cat", "demo", "0")
    assert [json.loads(line)["value"] for line in lines.splitlines()] == ["0:8", "0:9"]
    output, _ = run(capsys, "verify")
    assert "no violations" in output


def test_metrics_do_not_decrease_after_an_expiry(home: ConsumedHome) -> None:
    before = home.store.totals(KEY)
    forget(home)
    assert home.store.totals(KEY) == before


def test_a_reader_of_expired_output_is_refused(home: ConsumedHome) -> None:
    forget(home)
    with pytest.raises(OutputUnreadable, match="cannot be read completely"):
        refuse_expired_times(home.store, KEY, None, None)


def test_vacuum_keeps_named_files_and_a_claim_delays_expiry(home: ConsumedHome) -> None:
    """While another run replays a shard, its output stays, and so do files that readers see."""
    from dagster_leasehold.lease_store.ledger_rows import RewriteKind

    home.store.claim_rewrite(KEY, ZERO, "replay", RewriteKind.REPLAY)
    output = OutputExpiry(timedelta(days=-1), partial(touch_replaced, home.place))
    assert expire(home.store, KEY, output).expired == 2, "of shard 1 alone"
    age(home)
    report = vacuum(home.store, KEY, home.place, older_than=timedelta(hours=1))
    assert (len(report.removed), report.committed) == (2, 4)


def test_files_that_cannot_be_touched_keep_their_rows(
    home: ConsumedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refuse)
    output = OutputExpiry(timedelta(days=-1), partial(touch_replaced, home.place))
    report = expire(home.store, KEY, output)
    assert report.expired == 0
    assert len(report.failures) == 2
    assert "Expired output of shard 0 of demo/default could not be deleted" in report.failures[0]
    assert len(home.store.batches(KEY)) == 6
