"""Nodes whose hosts' wall clocks are hours apart and step while records flow."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.leasehold_process import assert_nothing_runs, leasehold
from tests.acceptance.node_changes import kill_and_start_again, leave
from tests.acceptance.node_hosts import (
    END_S,
    NODES,
    Hosts,
    wait_for_all_records,
    wait_for_progress,
    wait_until_shared,
)
from tests.acceptance.node_scene import SHARDS, Writer
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB
from tests.wall_clocks import WallClock, wall_clock_library

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1500),
]

APART = (0, 60, -60)
STEPS = ((75, -60, 30), (-90, 60, 120))
"""The minutes by which the clock of each host is wrong, at first and after each step."""


def test_nodes_with_different_and_stepping_clocks_commit_each_record_once(
    tmp_path: Path, mariadb: MariaDB
) -> None:
    """Goal: clocks change no owner, and a node that dies is missed, comes back, and another leaves.

    Each record is in the table once. Every process of a host has its clock, but for Spark's Java
    and the database.
    """
    clocks = {node: WallClock(wall_clock_library(), tmp_path / f"clock-{node}") for node in NODES}

    def set_clocks(minutes: tuple[int, ...]) -> None:
        for clock, wrong_by in zip(clocks.values(), minutes, strict=True):
            clock.step(minutes=wrong_by)

    set_clocks(APART)
    with KafkaBroker() as broker, ExitStack() as stack:
        writer = Writer(broker)
        variables = {node: clock.variables for node, clock in clocks.items()}
        hosts = Hosts(tmp_path, broker, mariadb, stack, variables=variables)
        watched = hosts.watched
        up = hosts.start_first()
        with writer:
            wait_until_shared(watched, up, "node-a")
            hosts.start("node-b")
            c = hosts.start("node-c")
            wait_until_shared(watched, up, *NODES)
            wait_for_progress(watched, up)
            at = watched.last_entry()
            for minutes in STEPS:
                set_clocks(minutes)
                wait_for_progress(watched, up)
                wait_for_progress(watched, up)
                # A code server of Dagster's compares its heartbeats by the wall clock: after a step
                # ahead it may end, and take no runs until its agent has started it again.
                wait_until_shared(watched, up, *NODES)
            changes = watched.kinds_after(at)
            assert not [change for change in changes if change.startswith(("evict", "leave"))]
            assert "edge 4" not in changes, "nothing was taken from anybody"
            if not any(change.startswith("resume") for change in changes):
                assert changes == [], "nothing moved"
            assert sum(watched.counts().values()) == SHARDS
            b = kill_and_start_again(hosts, up)
            leave(hosts, up, c)
        wait_for_all_records(watched, up, writer)
        assert b.end(signal.SIGTERM, END_S) == 0, b.text
        assert up.end(signal.SIGINT, END_S) == 0, up.text
        for home in hosts.homes.values():
            assert_nothing_runs(home)
        verified = leasehold("verify", "--home", hosts.first, folder=tmp_path, **hosts.shared)
        assert verified.code == 0, verified.out
