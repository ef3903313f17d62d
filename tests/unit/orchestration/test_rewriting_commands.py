"""`leasehold replay`, `compact` and `vacuum`, without Spark."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import dagster_leasehold.assets.rewriting.replay
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import RewriteKind
from dagster_leasehold.orchestration.commands.vacuum import duration
from tests.command_output import output_of
from tests.dagster_deployment import ROOT
from tests.environment import forget_settings
from tests.unit.assets.consumption_world import ArrowSweeper
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

ZERO = ShardId("0")
DECLARATION = """
from pathlib import Path
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.shard_sources.local_log import LocalLog

stream = ShardStream("demo", LocalLog(Path("home/logs/demo")), transform=lambda records: records)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Two shards of ten records, in three batches each; sweeps run in this process."""
    forget_settings(monkeypatch)
    # Another test's module of this name declares other streams.
    monkeypatch.delitem(sys.modules, "declared_streams", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    monkeypatch.setattr(
        dagster_leasehold.assets.rewriting.replay, "SparkSweeper", lambda **_: home.sweeper
    )
    yield home
    home.store.close()


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output_of(capsys, *arguments, "--json"))


def generations(home: ConsumedHome, shard: ShardId = ZERO) -> list[int]:
    return [batch.generation for batch in home.store.batches(KEY, shard)]


def cat(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = output_of(capsys, "cat", "demo").splitlines()
    return [json.loads(line)["value"] for line in lines]


EVERY = [f"{shard}:{number}" for shard in (0, 1) for number in range(10)]


def test_replay_prints_its_results(home: ConsumedHome, capsys: pytest.CaptureFixture[str]) -> None:
    before = cat(capsys)
    assert before == EVERY
    done = answer(capsys, "replay", "demo", "0", "--from", "4", "--to", "8")
    assert [(each["shard"], each["batches"], each["records"]) for each in done["shards"]] == [
        ("0", 1, 4)
    ]
    assert done["run"].startswith("replay-")
    assert generations(home) == [0, 1, 0]
    assert "Replay of demo/default" in output_of(capsys, "replay", "demo")
    assert generations(home) == [1, 2, 1]
    assert cat(capsys) == before
    assert "no violations" in output_of(capsys, "verify")


def test_a_lost_file_is_rebuilt_with_the_declared_transform(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cat(capsys)
    for file in home.store.batches(KEY, ZERO)[0].files:
        (home.output / file.path).unlink()
    output_of(capsys, "replay", "demo")
    assert cat(capsys) == before


@pytest.mark.parametrize("command", [("replay",), ("quarantine", "retry")])
def test_the_shipped_example_is_found_by_its_module(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    """A module of definitions holds Dagster's values too, and finds the home of the command."""
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples/access_log"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "access_log"]:
        monkeypatch.delitem(sys.modules, name)
    key = GroupKey.parse("default", "access")
    home = ConsumedHome(tmp_path / "elsewhere", key=key)
    home.append(3)
    home.sweeper.refuses = lambda value: value == b"0:2"
    home.consume("run-1")
    streams: list[ShardStream] = []

    def sweeper(stream: ShardStream, **_: object) -> ArrowSweeper:
        streams.append(stream)
        return home.sweeper

    monkeypatch.setattr(dagster_leasehold.assets.rewriting.replay, "SparkSweeper", sweeper)
    module = ("--module", "access_log.definitions", "--home", str(home.settings.home))
    output_of(capsys, *command, "access", *module)
    assert home.store.batches(key, ZERO)[0].generation == 1
    (stream,) = streams
    assert stream.transform is not None
    assert stream.source.bounds([ZERO])[ZERO].end == "3"
    assert "LEASEHOLD_HOME" not in os.environ
    home.store.close()


def test_batches_with_removed_records_are_reported(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home.log.retain("0", "10")
    done = answer(capsys, "replay", "demo")["shards"]
    assert [
        (each["shard"], each["batches"], each["kept"], each["kept_until"]) for each in done
    ] == [("0", 0, 3, "10"), ("1", 3, 0, None)]


def test_a_second_rewriter_is_refused_unless_it_replaces_the_first(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home.store.claim_rewrite(KEY, ZERO, "killed-run", RewriteKind.REPLAY)
    for command in ("replay", "compact"):
        error = output_of(capsys, command, "demo", "0", code=2)
        assert "Run killed-run is replaying shard 0" in error
    output_of(capsys, "compact", "demo", "--replaces", "killed-run")
    assert generations(home) == [1, 1, 1]
    assert home.store.rewrites(KEY) == []


def test_compact_then_vacuum(home: ConsumedHome, capsys: pytest.CaptureFixture[str]) -> None:
    done = answer(capsys, "compact", "demo")["shards"]
    assert [(each["files_before"], each["files_after"]) for each in done] == [(3, 1)] * 2
    assert cat(capsys) == EVERY
    assert "Compaction of demo/default" in output_of(capsys, "compact", "demo")
    assert answer(capsys, "vacuum", "demo")["report"]["removed"] == [], "readers may still read"
    then = time.time() - 7_200
    for path in home.output.rglob("*"):
        os.utime(path, (then, then))
    planned = output_of(capsys, "vacuum", "demo", "--dry-run")
    assert "Would remove 6 files" in planned
    assert "Would remove 0 files" in output_of(
        capsys, "vacuum", "demo", "--dry-run", "--older-than", "3h"
    )
    assert "Removed 6 files" in output_of(capsys, "vacuum", "demo")
    assert len([*home.output.rglob("*.parquet")]) == 2
    assert cat(capsys) == EVERY
    assert "no violations" in output_of(capsys, "verify")


def test_user_mistakes_are_one_sentence(
    home: ConsumedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    for mistake in (
        ("replay", "nothing"),
        ("replay", "demo", "9"),
        ("replay", "demo", "--from", "end"),
        ("replay", "demo", "--from", "7", "--to", "3"),
        ("replay", "demo", "0", "--from", "yesterday"),
        ("compact", "demo", "9"),
        ("compact", "demo", "--target-mib", "0"),
        ("vacuum", "demo", "--older-than", "1"),
        ("vacuum", "demo", "--older-than", "10s"),
        ("vacuum", "demo", "--older-than", "-1h"),
        ("vacuum", "nothing"),
    ):
        error = output_of(capsys, *mistake, code=2)
        assert error.count("\n") == 1, error
    assert generations(home) == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("2m", 120), ("1h", 3_600), ("1d", 86_400)]
)
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert duration(text).total_seconds() == seconds
