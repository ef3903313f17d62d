"""The demo as a user runs it: it ends with its proof, leaves nothing running, can be stopped."""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dagster_leasehold.orchestration.demo.input import access_log
from dagster_leasehold.orchestration.supervision.dagster_processes import DAEMON
from dagster_leasehold.shard_sources.local_log import Record
from tests.acceptance.leasehold_process import (
    CatRecord,
    Finished,
    assert_nothing_runs,
    cat,
    leasehold,
    processes_of,
    running,
)
from tests.unit.docs.recorded_output import assert_printed

pytestmark = [pytest.mark.dagster_processes, pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS = 20_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "home"


@pytest.fixture(scope="module")
def demo(home: Path) -> Finished:
    """One demo on generated records, with its sensors, runs, split and merge."""
    return leasehold(
        *("demo", "--home", home, "--records", RECORDS, "--seed", 7, "--timeout", 240),
        folder=home.parent,
        timeout_s=330,
    )


@pytest.fixture(scope="module")
def committed(home: Path, demo: Finished) -> list[CatRecord]:
    assert demo.code == 0, demo.out + demo.err
    return cat(home)


def test_it_ends_with_the_table_and_the_proof(demo: Finished) -> None:
    assert demo.code == 0, demo.out + demo.err
    assert demo.err == ""
    assert f"Records: {RECORDS:,} loaded, {RECORDS:,} committed, each exactly once." in demo.out
    assert "no overlapping tenures, no gap, no overlap" in demo.out
    assert "split shard 0 into 8 and 9, merged 4 and 5 into 10" in demo.out
    assert "Table leasehold.leasehold.demo, as DuckDB reads it" in demo.out
    assert f"Table: DuckDB counts {RECORDS:,} records, as many as were committed." in demo.out
    table = demo.out.split("Shards of demo/default")[1].split("Journal and ledger")[0]
    assert max(len(line) for line in table.splitlines()) <= 100
    assert_printed(("demo",), demo.out)


def test_it_shows_its_progress(demo: Finished) -> None:
    assert "consumed" in demo.out
    assert "lag" in demo.out


def test_cat_gives_each_record_once(committed: list[CatRecord]) -> None:
    loaded = [record.value for record in access_log(RECORDS, 7)]
    assert Counter(record.value for record in committed) == Counter(loaded)


def test_cat_is_in_order_per_shard_and_from_parent_to_child(
    committed: list[CatRecord], home: Path
) -> None:
    position = {
        record.value: number
        for number, record in enumerate(access_log(RECORDS, 7))
        if isinstance(record, Record)
    }
    places: dict[str, list[int]] = defaultdict(list)
    cursors: dict[str, list[int]] = defaultdict(list)
    for record in committed:
        places[record.shard].append(position[record.value])
        cursors[record.shard].append(record.cursor)
    assert set(places) == {str(number) for number in range(11)}
    for shard, numbers in cursors.items():
        assert numbers == list(range(len(numbers)))
        assert places[shard] == sorted(places[shard])
    for parent, child in (("0", "8"), ("0", "9"), ("4", "10"), ("5", "10")):
        assert max(places[parent]) < min(places[child])


def test_status_afterwards_shows_finished_parents_and_no_lag(demo: Finished, home: Path) -> None:
    shown = leasehold("status", "--json", "--home", home, folder=home.parent)
    shards = {shard["shard"]: shard for shard in json.loads(shown.out)["shards"]}
    assert {shard for shard, row in shards.items() if row["state"] == "over"} == {"0", "4", "5"}
    assert {row["lag"] for row in shards.values()} == {0}
    assert {row["consumer_owner"] for row in shards.values() if row["state"] != "over"} == {
        *("node-a", "node-b")
    }


def test_verify_afterwards_finds_nothing(demo: Finished, home: Path) -> None:
    done = leasehold("verify", "--json", "--home", home, folder=home.parent)
    assert (done.code, json.loads(done.out)["violations"]) == (0, [])


def test_children_began_after_their_parents_had_ended(demo: Finished, home: Path) -> None:
    journal = leasehold("journal", "--json", "--limit", 10_000, "--home", home, folder=home.parent)
    entries = json.loads(journal.out)
    over = {entry["shard"]: entry["sequence"] for entry in entries if entry["edge"] == 8}
    opened: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "open":
            opened.setdefault(entry["shard"], entry["sequence"])
    for parent, child in (("0", "8"), ("0", "9"), ("4", "10"), ("5", "10")):
        assert over[parent] < opened[child]


def test_it_leaves_nothing_running(demo: Finished, home: Path) -> None:
    assert_nothing_runs(home)


@pytest.mark.long
def test_an_interrupt_ends_it_with_all_its_children(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running("demo", "--home", home, "--records", 1000, folder=tmp_path) as demo:
        demo.until(lambda: any(DAEMON in line for line in processes_of(home)), 60)
        assert demo.end(signal.SIGINT) == 130
        assert "Traceback" not in demo.text
        assert demo.text.endswith("Interrupted.\n")
    assert_nothing_runs(home)
