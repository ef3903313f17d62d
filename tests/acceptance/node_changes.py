"""Changes of the nodes of a deployment, each with the expected reaction of the others."""

from __future__ import annotations

import signal

from tests.acceptance.leasehold_process import Running
from tests.acceptance.node_hosts import END_S, NODES, Hosts, wait_for_progress, wait_until_shared
from tests.acceptance.node_scene import KEY, TICK_S, TIMEOUT_S
from tests.unit.docs.recorded_output import assert_printed

SLOW_MACHINE_S = 30.0
"""The delay of a tick on a busy machine, in seconds."""


def kill_and_start_again(hosts: Hosts, up: Running) -> Running:
    """A host dies, is missed after T, and comes back."""
    watched = hosts.watched
    at = watched.last_entry()
    watched.kill("node-b")
    wait_until_shared(watched, up, "node-a", "node-c")
    assert watched.silence_of("node-b") < TIMEOUT_S + 2 * TICK_S + SLOW_MACHINE_S
    evictions = [change for change in watched.kinds_after(at) if change.startswith("evict")]
    assert evictions == ["evict node-b"]
    again = hosts.start("node-b")
    wait_until_shared(watched, up, *NODES)
    wait_for_progress(watched, up)
    return again


def leave(hosts: Hosts, up: Running, node: Running) -> None:
    """A node leaves by transfer; a second one of its name was refused."""
    watched = hosts.watched
    at = watched.last_entry()
    refused = hosts.refusal_of_twin("node-c")
    assert refused.startswith("Another `leasehold node` runs node 'node-c'")
    assert node.end(signal.SIGTERM, END_S) == 0, node.text
    assert f"Node node-c left group {KEY} and freed" in node.text
    assert_printed(("node",), node.text, **{"node-a": "node-c"})
    wait_until_shared(watched, up, "node-a", "node-b")
    changes = watched.kinds_after(at)
    assert "leave node-c" in changes
    assert [change for change in changes if change.startswith("evict")] == []
    wait_for_progress(watched, up)
