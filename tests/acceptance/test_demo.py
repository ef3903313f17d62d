"""The demo as a user runs it: it ends with its proof, leaves nothing running, can be stopped."""

from __future__ import annotations

import json
import runpy
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from dagster_leasehold.orchestration.supervision.dagster_processes import DAEMON
from tests.acceptance.leasehold_process import (
    DEMO,
    CatRecord,
    Finished,
    assert_nothing_runs,
    cat,
    leasehold,
    processes_of,
    running,
)

pytestmark = [pytest.mark.dagster_processes, pytest.mark.spark, pytest.mark.timeout(900)]

RECORDS, SEED = 20_000, 7


def loaded() -> list[bytes]:
    """The values that the demo loads, in their order."""
    access_log = runpy.run_path(DEMO[-1])["access_log"]
    return [record.value for record in access_log(RECORDS, SEED)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "home"


@pytest.fixture(scope="module")
def demo(home: Path) -> Finished:
    """One demo on generated records, with its sensors, runs, split and merge."""
    return leasehold(
        *("--home", home, "--records", RECORDS, "--seed", SEED, "--timeout", 240),
        folder=home.parent,
        timeout_s=330,
        program=DEMO,
    )


@pytest.fixture(scope="module")
def committed(home: Path, demo: Finished) -> list[CatRecord]:
    assert demo.code == 0, demo.out + demo.err
    return cat(home)


def test_the_demo_ends_with_verify(demo: Finished) -> None:
    assert demo.code == 0, demo.out + demo.err
    assert demo.err == ""
    assert "split shard 0 into 8 and 9, merged 4 and 5 into 10" in demo.out
    assert "committed batches, no violations." in demo.out
    assert f"Records: {RECORDS:,} loaded, {RECORDS:,} read by DuckDB, each once." in demo.out


def test_the_demo_prints_its_progress_in_plain_lines(demo: Finished) -> None:
    assert "records committed" in demo.out
    assert max(map(len, demo.out.splitlines())) <= 150
    assert "\x1b" not in demo.out


def test_cat_prints_each_record_once(committed: list[CatRecord]) -> None:
    assert Counter(record.value for record in committed) == Counter(loaded())


def test_cat_is_in_order_per_shard_and_from_parent_to_child(committed: list[CatRecord]) -> None:
    position = {value: number for number, value in enumerate(loaded())}
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


def test_status_shows_finished_parents_and_no_lag_after_the_demo(
    demo: Finished, home: Path
) -> None:
    shown = leasehold("status", "--json", "--home", home, folder=home.parent)
    shards = {shard["shard"]: shard for shard in json.loads(shown.out)["shards"]}
    assert {shard for shard, row in shards.items() if row["state"] == "over"} == {"0", "4", "5"}
    assert {row["lag"] for row in shards.values()} == {0}
    assert {row["consumer_owner"] for row in shards.values() if row["state"] != "over"} == {
        *("node-a", "node-b")
    }


def test_verify_finds_no_violation_after_the_demo(demo: Finished, home: Path) -> None:
    done = leasehold("verify", "--json", "--home", home, folder=home.parent)
    assert (done.code, json.loads(done.out)["violations"]) == (0, [])


def test_children_started_after_their_parents_had_ended(demo: Finished, home: Path) -> None:
    journal = leasehold("journal", "--json", "--limit", 10_000, "--home", home, folder=home.parent)
    entries = json.loads(journal.out)
    over = {entry["shard"]: entry["sequence"] for entry in entries if entry["edge"] == 8}
    opened: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "open":
            opened.setdefault(entry["shard"], entry["sequence"])
    for parent, child in (("0", "8"), ("0", "9"), ("4", "10"), ("5", "10")):
        assert over[parent] < opened[child]


def test_the_demo_leaves_no_process_running(demo: Finished, home: Path) -> None:
    assert_nothing_runs(home)


@pytest.mark.long
def test_an_interrupt_ends_the_demo_and_all_its_children(tmp_path: Path) -> None:
    home = tmp_path / "home"
    given = ("--home", home, "--records", 1000)
    with running(*given, folder=tmp_path, program=DEMO) as demo:
        demo.until(lambda: any(DAEMON in line for line in processes_of(home)), 60)
        assert demo.end(signal.SIGINT) == 1
        assert "Traceback" not in demo.text
        assert demo.text.endswith("Interrupted.\n")
    assert_nothing_runs(home)


def test_the_demo_refuses_a_folder_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = leasehold("--home", tmp_path, folder=tmp_path, program=DEMO)
    assert done.code == 1
    assert (
        done.err == f"The folder {tmp_path} is not empty, and no demo made it: name another one.\n"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_missing_input_is_one_sentence_and_the_last_demo_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "demo.json").touch()
    done = leasehold(
        "--home", home, "--input", tmp_path / "none.log", folder=tmp_path, program=DEMO
    )
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "No such file or directory" in done.err
    assert (home / "demo.json").exists()
