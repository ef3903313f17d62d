"""Failpoints: numbered without a hole, all of them in use, and each file arms one process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import psutil

from dagster_leasehold.lease_store.failpoints import ENVIRONMENT_VARIABLE, FOLDER_MARK
from tests.chaos import test_chaos
from tests.chaos.incidents import AtFailpoint
from tests.failpoints import Failpoint
from tests.integration.assets import (
    test_assigned_location,
    test_crash_windows,
    test_gaps_killed,
    test_held_publications_killed,
    test_publishing_killed,
    test_rewriting_killed,
    test_routes_killed,
)
from tests.integration.lease_store import test_planning_killed
from tests.unit.orchestration import test_moved_table
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
PACKAGES = ("lease_store", "assets", "sensors", "orchestration", "shard_sources")
CODE = "from dagster_leasehold.lease_store.failpoints import reach; reach('after_commit')"


def test_failpoint_numbers_have_no_gap() -> None:
    assert [point.number for point in Failpoint] == list(range(1, len(Failpoint) + 1))


def test_failpoints_match_their_places_in_the_code() -> None:
    """By name, or as the transaction that it lies in."""
    text = "".join(
        path.read_text("utf-8")
        for name in PACKAGES
        for path in (ROOT / "dagster_leasehold" / name).rglob("*.py")
    )
    within = {point.label for point in Failpoint if point.label.startswith("in_")}
    named = {point.label for point in Failpoint} - within
    assert set(re.findall(r'(?:reach|armed)\("(\w+)"\)', text)) == named
    for label in within:
        assert f'"{label.removeprefix("in_")}"' in text, label


def test_every_failpoint_is_used_by_a_kill_test() -> None:
    """Each of them is one of the places at which a test kills a process."""
    played = [incident for waves in test_chaos.ROUNDS for wave in waves for incident in wave]
    killed = {
        *test_assigned_location.POINTS,
        *test_crash_windows.POINTS,
        *test_gaps_killed.POINTS,
        *chain.from_iterable(test_held_publications_killed.POINTS.values()),
        *test_planning_killed.POINTS,
        *test_publishing_killed.POINTS,
        *test_moved_table.POINTS,
        *test_rewriting_killed.POINTS,
        *test_routes_killed.POINTS,
        *test_rewriting_killed.VACUUM_POINTS,
        *test_rewriting_killed.EXPIRY_POINTS,
        *[each.point for each in played if isinstance(each, AtFailpoint) and not each.freeze],
    }
    assert killed == set(Failpoint)


def run(variable: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, ENVIRONMENT_VARIABLE: variable}
    return subprocess.Popen([sys.executable, "-c", CODE], env=environment, cwd=ROOT)


def test_a_process_dies_at_the_named_place_only() -> None:
    assert run("after_commit").wait(60) == -signal.SIGKILL
    assert run("before_commit").wait(60) == 0
    assert run("").wait(60) == 0


def test_a_file_arms_one_process(tmp_path: Path) -> None:
    (tmp_path / "after_commit").touch()
    first = run(f"{FOLDER_MARK}{tmp_path}")
    assert first.wait(60) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [f"after_commit.{first.pid}"]
    assert run(f"{FOLDER_MARK}{tmp_path}").wait(60) == 0


def test_a_file_can_ask_for_a_freeze(tmp_path: Path) -> None:
    (tmp_path / "after_commit").write_text("STOP")
    with run(f"{FOLDER_MARK}{tmp_path}") as process:
        seen = psutil.Process(process.pid)
        wait_for("the freeze", lambda: seen.status() == psutil.STATUS_STOPPED)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
