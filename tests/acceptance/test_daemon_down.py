"""Nodes whose daemon stalls, or whose host's clock is set back.

One of two nodes dies, and the run of the other continues for both. After a step of the clock, runs
continue, and others begin.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.orchestration.supervision.dagster_processes import DAEMON
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import (
    assert_nothing_runs,
    kill_node,
    leasehold,
    running,
    standing_still,
)
from tests.declared import declare, stream_text
from tests.ports import free_port
from tests.wall_clocks import WallClock, wall_clock_library

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]
KEY = GroupKey.parse("default", "demo")
SHARDS, TIMEOUT_S = 4, 6.0
DECLARED = stream_text("demo", pace="Pace(commit_interval_s=1)")
START_S, CHANGE_S = 240.0, 60.0


SHORT = stream_text("demo", pace="Pace(commit_interval_s=1, run_budget_s=5, idle_limit_s=5)")
BACK_MIN = 60


class Scene:
    """The log and the group, as they are now."""

    def __init__(self, log: LocalLog, store: LeaseStore) -> None:
        self.log, self.store = log, store
        self.records = 0

    def append(self) -> None:
        for row in self.log.list_shards():
            self.log.append(row.shard, [b"%d" % self.records])
            self.records += 1

    def owners(self) -> Counter[str | None]:
        """The nodes of shards that a run has open."""
        rows = self.store.snapshot(KEY).shards if self.store.groups() else ()
        return Counter(row.consumer_owner for row in rows if row.consumer_run)

    def readable(self) -> bool:
        """Return True if the table shows every record."""
        committed = sum(total.records for total in self.store.totals(KEY))
        return committed == self.records and not self.store.publication_lag(KEY)


def test_a_node_with_a_stalled_daemon_takes_over_shards_and_publishes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = LocalLog.create(home / "logs" / "demo", SHARDS)
    declare(home, DECLARED, settings=f"lease_timeout_s = {TIMEOUT_S}\n")
    settings = load_settings(home=home)
    command = ("dev", "--nodes", 2, "--home", home, "--port", free_port())
    with running(*command, folder=tmp_path) as dev:
        dev.until((home / "leases.db").exists, START_S)
        scene = Scene(log, open_store(settings.store_url))
        scene.append()
        dev.until(lambda: scene.owners() == {"node-a": 2, "node-b": 2}, START_S)
        dev.until(scene.readable, START_S)
        up = psutil.Process(dev.pid)
        # The process that warms Spark ends about now, and has no command line then.
        alive = (each for each in up.children() if each.status() != psutil.STATUS_ZOMBIE)
        (daemon,) = (child for child in alive if DAEMON in child.cmdline())
        with standing_still(daemon):
            # After 2 T, a node without a run would give its shards away.
            time.sleep(3 * TIMEOUT_S)
            scene.append()
            dev.until(scene.readable, CHANGE_S)
            assert scene.owners() == {"node-a": 2, "node-b": 2}
            with standing_still(up):
                kill_node(home, "node-b")
                scene.append()
                dev.until(lambda: scene.owners() == {"node-a": 4}, CHANGE_S)
                dev.until(scene.readable, CHANGE_S)

        def shared() -> bool:
            # No run is launched for shards without records.
            scene.append()
            time.sleep(1.0)
            return scene.owners() == {"node-a": 2, "node-b": 2}

        dev.until(shared, START_S)
        dev.until(scene.readable, CHANGE_S)
        verified = leasehold("verify", "--home", home, folder=tmp_path)
        assert verified.code == 0, verified.out
        assert dev.end(signal.SIGINT) == 0, dev.text
    assert_nothing_runs(home)


def test_runs_start_after_the_clock_was_set_back(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = LocalLog.create(home / "logs" / "demo", SHARDS)
    declare(home, SHORT, settings=f"lease_timeout_s = {TIMEOUT_S}\n")
    settings = load_settings(home=home)
    clock = WallClock(wall_clock_library(), tmp_path / "clock")
    clock.step(minutes=0)
    with running(
        "dev", "--home", home, "--port", free_port(), folder=tmp_path, **clock.variables
    ) as dev:
        dev.until((home / "leases.db").exists, START_S)
        scene = Scene(log, open_store(settings.store_url))
        scene.append()
        dev.until(lambda: bool(scene.owners()), START_S)
        dev.until(scene.readable, START_S)
        up = psutil.Process(dev.pid)
        # The process that warms Spark ends about now, and has no command line then.
        alive = (each for each in up.children() if each.status() != psutil.STATUS_ZOMBIE)
        (daemon,) = (child for child in alive if DAEMON in child.cmdline())
        clock.step(minutes=-BACK_MIN)
        dev.until(lambda: not scene.owners(), CHANGE_S)
        scene.append()
        dev.until(scene.readable, 2 * CHANGE_S)
        assert daemon.is_running(), "it has begun anew in its process"
        log_text = (home / "daemon.log").read_text(encoding="utf-8")
        assert log_text.count(f"The clock was set back by {BACK_MIN * 60} s") == 1
        assert dev.end(signal.SIGINT) == 0, dev.text
    assert_nothing_runs(home)
    verified = leasehold("verify", "--home", home, folder=tmp_path)
    assert verified.code == 0, verified.out
