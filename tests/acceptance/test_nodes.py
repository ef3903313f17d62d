"""Many nodes on one machine: killed, started again, joined and left while records flow."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from dagster_leasehold.orchestration.supervision.dagster_processes import DAEMON
from tests.acceptance.leasehold_process import Running, assert_nothing_runs, cat, leasehold, running
from tests.acceptance.node_scene import (
    KEY,
    SHARDS,
    TICK_S,
    TIMEOUT_S,
    Watched,
    Writer,
    make_home,
    value,
)
from tests.ports import free_port
from tests.unit.docs.recorded_output import assert_printed

START_S, CHANGE_S, END_S = 400.0, 400.0, 300.0
SLOW_MACHINE_S = 30.0
"""The time by which a tick may be late on a machine that has other work."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
]


def wait_until_shared(watched: Watched, command: Running, *names: str) -> None:
    command.until(lambda: watched.shared_by(*names), CHANGE_S)


def wait_for_progress(watched: Watched, command: Running) -> None:
    """Every shard commits something more than it has now."""
    before = watched.check_points()
    command.until(
        lambda: all(now > before[shard] for shard, now in watched.check_points().items()), CHANGE_S
    )


def assert_runs_are_where_their_shards_are(watched: Watched, command: Running) -> None:
    """Each node was seen with a run whose process its own code server started."""
    seen: set[str] = set()

    def all_seen() -> bool:
        for node, parent in watched.run_parents():
            assert parent in watched.sessions(node), f"a run of {node} is a child of {parent}"
            seen.add(node)
        return seen >= {"node-a", "node-b", "node-c"}

    command.until(all_seen, CHANGE_S)


def test_nodes_come_and_go_while_records_flow(tmp_path: Path) -> None:
    """Goal: each change of nodes is followed by the others, and each record is committed once."""
    home = tmp_path / "home"
    log = make_home(home)
    watched, writer = Watched(home), Writer(log)
    started = running("up", "--nodes", 3, "--home", home, "--port", free_port(), folder=tmp_path)
    with started as up:
        with writer:
            up.until(lambda: "Open http://" in up.text, START_S)
            up.until(lambda: watched.shared_by("node-a", "node-b", "node-c"), START_S)
            assert_runs_are_where_their_shards_are(watched, up)
            wait_for_progress(watched, up)
            kill_what_is_looked_after(home, watched, up)
            start_and_stop_nodes(home, tmp_path, watched, up)
        everything = {writer.written}
        up.until(lambda: set(watched.check_points().values()) == everything, CHANGE_S)
        assert up.end(signal.SIGINT, END_S) == 0, up.text
        assert_printed(("up",), up.text, **{".leasehold": str(home)})
    assert_nothing_runs(home)
    verified = leasehold("verify", "--home", home, folder=tmp_path)
    assert verified.code == 0, verified.out
    by_shard: dict[str, list[bytes]] = {}
    for record in cat(home):
        by_shard.setdefault(record.shard, []).append(record.value)
    shards = [str(number) for number in range(SHARDS)]
    assert by_shard == {
        shard: [value(shard, number) for number in range(writer.written)] for shard in shards
    }


def kill_what_is_looked_after(home: Path, watched: Watched, up: Running) -> None:
    """A node, the daemon and the web page die at once: all of them come back by themselves."""
    watched.kill("node-b")
    for part in (DAEMON, "dagster_webserver"):
        watched.kill_part(part)
    for name in ("agent of node-b", "Dagster daemon", "webserver"):
        up.until(lambda name=name: re.search(f"{name} ended with code -9", up.text), START_S)
    up.until(lambda: len(watched.sessions("node-b")) > 0, START_S)
    wait_until_shared(watched, up, "node-a", "node-b", "node-c")
    address = re.findall(r"Open (http://\S+)", up.text)[0]

    def answers() -> bool:
        with suppress(OSError), urlopen(f"{address}/server_info", timeout=5) as page:
            return page.status == 200
        return False

    up.until(answers, START_S)
    wait_for_progress(watched, up)


def start_and_stop_nodes(home: Path, folder: Path, watched: Watched, up: Running) -> None:
    """Two nodes join; one leaves by transfer, the other is killed, and is missed after T."""
    at = watched.last_entry()
    commands = {
        name: ("node", "--name", name, "--home", home, "--port", free_port())
        for name in ("node-d", "node-e")
    }
    for name in commands:
        (folder / name).mkdir()
    with (
        running(*commands["node-d"], folder=folder / "node-d") as d,
        running(*commands["node-e"], folder=folder / "node-e"),
    ):
        wait_until_shared(watched, up, "node-a", "node-b", "node-c", "node-d", "node-e")
        changes = watched.kinds_after(at)
        assert "edge 4" not in changes, "nothing was taken from anybody"
        # A code server that did not answer for a while took no runs, and its shards went round.
        hung = sum(change.startswith("resume") for change in changes)
        moves_max = SHARDS // 4 + SHARDS // 5 + hung * SHARDS
        assert changes.count("edge 5") <= moves_max, "and no move was wasted"
        twin = leasehold(*commands["node-d"], folder=folder)
        assert twin.code == 2
        assert twin.err.startswith("Another `leasehold node` answers to node 'node-d'")
        wait_for_progress(watched, up)
        assert d.end(signal.SIGTERM, END_S) == 0, d.text
        assert f"Node node-d left group {KEY} and freed" in d.text
        assert_printed(("node",), d.text, **{"node-a": "node-d"})
        wait_until_shared(watched, up, "node-a", "node-b", "node-c", "node-e")
        assert [change for change in watched.kinds_after(at) if change.startswith("evict")] == []
        watched.kill("node-e")
        wait_until_shared(watched, up, "node-a", "node-b", "node-c")
    assert watched.silence_of("node-e") < TIMEOUT_S + 2 * TICK_S + SLOW_MACHINE_S
    changes = watched.kinds_after(at)
    assert "leave node-d" in changes
    assert [change for change in changes if change.startswith("evict")] == ["evict node-e"]
    wait_for_progress(watched, up)
