"""Nodes whose hosts share no folder: killed, started again, joined and left while records flow."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from dagster_leasehold.orchestration.supervision.dagster_processes import DAEMON
from tests.acceptance.leasehold_process import Running, assert_nothing_runs, leasehold
from tests.acceptance.node_changes import kill_and_start_again, leave
from tests.acceptance.node_hosts import (
    CHANGE_S,
    END_S,
    NODES,
    START_S,
    Hosts,
    wait_for_all_records,
    wait_for_progress,
    wait_until_shared,
)
from tests.acceptance.node_scene import SHARDS, Watched, Writer, files_of_runs
from tests.kafka_broker import KafkaBroker
from tests.mariadb import MariaDB
from tests.unit.docs.recorded_output import assert_printed

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
]


def assert_runs_are_where_their_shards_are(watched: Watched, command: Running) -> None:
    """Each node was seen with a run whose process its own code server started."""
    seen: set[str] = set()

    def all_seen() -> bool:
        for node, session in watched.run_sessions():
            assert session in watched.sessions(node), f"a run of {node} is of session {session}"
            seen.add(node)
        return seen >= set(NODES)

    command.until(all_seen, CHANGE_S)


def test_nodes_join_and_leave_while_records_are_consumed(tmp_path: Path, mariadb: MariaDB) -> None:
    """Goal: each change of nodes is followed by the others, and each record is in the table once.

    The hosts share the database, the object store and the source, and no folder.
    """
    with KafkaBroker() as broker, ExitStack() as stack:
        writer = Writer(broker)
        hosts = Hosts(tmp_path, broker, mariadb, stack)
        watched = hosts.watched
        up = hosts.start_first()
        with writer:
            wait_until_shared(watched, up, "node-a")
            hosts.start("node-b")
            c = hosts.start("node-c")
            at = watched.last_entry()
            wait_until_shared(watched, up, *NODES)
            assert_no_move_was_wasted(watched.kinds_after(at))
            assert_runs_are_where_their_shards_are(watched, up)
            kill_what_is_looked_after(watched, up)
            b = kill_and_start_again(hosts, up)
            leave(hosts, up, c)
        wait_for_all_records(watched, up, writer)
        for node, home in hosts.homes.items():
            others = set().union(*(watched.runs_of(other) for other in NODES if other != node))
            assert files_of_runs(home, watched.runs_of(node)), f"of {node}"
            assert files_of_runs(home, others) == [], "a run keeps its files on its own host"
            assert not (home / "output").exists()
        assert b.end(signal.SIGTERM, END_S) == 0, b.text
        assert up.end(signal.SIGINT, END_S) == 0, up.text
        assert_printed(("dev",), up.text, **{".leasehold": str(hosts.first)})
        for home in hosts.homes.values():
            assert_nothing_runs(home)
        verified = leasehold("verify", "--home", hosts.first, folder=tmp_path, **hosts.shared)
        assert verified.code == 0, verified.out


def assert_no_move_was_wasted(changes: list[str]) -> None:
    """Two nodes have joined one that had all shards."""
    assert "edge 4" not in changes, "nothing was taken from anybody"
    # A code server that did not answer for a while took no runs, and its shards went round.
    hung = sum(change.startswith("resume") for change in changes)
    assert changes.count("edge 5") <= SHARDS // 2 + SHARDS // 3 + hung * SHARDS


def kill_what_is_looked_after(watched: Watched, up: Running) -> None:
    """A node, the daemon and the web page die at once: all of them come back by themselves."""
    watched.kill("node-a")
    for part in (DAEMON, "dagster_webserver"):
        watched.kill_part(part)
    for name in ("agent of node-a", "Dagster daemon", "webserver"):
        up.until(lambda name=name: re.search(f"{name} ended with code -9", up.text), START_S)
    up.until(lambda: len(watched.sessions("node-a")) > 0, START_S)
    wait_until_shared(watched, up, *NODES)
    address = re.findall(r"Open (http://\S+)", up.text)[0]

    def answers() -> bool:
        with suppress(OSError), urlopen(f"{address}/server_info", timeout=5) as page:
            return page.status == 200
        return False

    up.until(answers, START_S)
    wait_for_progress(watched, up)
