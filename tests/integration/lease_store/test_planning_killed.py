"""Kill a planning process at every step of observe, plan, claim, evict and transfer.

Method: for each step, a separate group and a separate process that serves a node of it and dies at
the failpoint, all at the same time on a real database. Another node, which knows nothing about the
dead one, continues. In the end the live nodes share all shards, and the journal proves the
promises.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.failpoints import ENVIRONMENT_VARIABLE
from dagster_leasehold.lease_store.group_rows import Group, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.store import LeaseStore
from tests.failpoints import Failpoint

pytestmark = [pytest.mark.long, pytest.mark.mariadb, pytest.mark.timeout(700)]

ROOT = Path(__file__).parents[3]
HOLDER, KILLED, NEXT = NodeName("holder"), NodeName("killed"), NodeName("next")
SHARDS = [ShardListing(ShardId(str(number))) for number in range(4)]
T_S, HANDOFF_S, EVERY_S, PATIENCE_S = 8.0, 0.5, 0.2, 200.0
ALONE = (
    Failpoint.IN_SYNC_SHARDS, Failpoint.IN_REGISTER, Failpoint.AFTER_BEAT, Failpoint.AFTER_PLAN,
    Failpoint.IN_CLAIM, Failpoint.AFTER_CLAIM,
)  # fmt: skip
"""Reached by a node that is the first of its group."""
BESIDE_A_DEAD_HOLDER = (Failpoint.IN_EVICT,)
BESIDE_A_LIVE_HOLDER = (Failpoint.IN_BEGIN_TRANSFER, Failpoint.IN_COMPLETE_TRANSFER)
"""The holder's runs never release, so that its shards are taken over at the deadline."""
POINTS = (*ALONE, *BESIDE_A_DEAD_HOLDER, *BESIDE_A_LIVE_HOLDER)


Groups = dict[Failpoint, dict[NodeName, Rebalancer]]
"""The living nodes of each failpoint's group."""


def key_of(point: Failpoint) -> GroupKey:
    return GroupKey.parse("group", point.label)


def rebalancer(store: LeaseStore, point: Failpoint, node: NodeName) -> Rebalancer:
    return Rebalancer(
        store,
        key_of(point),
        serves=(node,),
        timing=Timing(timeout_s=T_S, beat_s=T_S / 3),
        observer=f"observer of {node}",
        incarnation_of=lambda _: uuid.uuid4().hex,
    )


@contextmanager
def doomed(url: str, point: Failpoint) -> Generator[subprocess.Popen[bytes]]:
    """A process that serves a node until the failpoint kills it."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, url, point.name],
        env={**os.environ, ENVIRONMENT_VARIABLE: point.label},
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def unbalanced(store: LeaseStore, nodes: Groups) -> list[Failpoint]:
    """Groups whose shards are not all held by their living nodes, in equal parts."""
    points: list[Failpoint] = []
    for point, living in nodes.items():
        rows = store.snapshot(key_of(point)).shards
        settled = all(row.state.held and row.lease_owner == row.consumer_owner for row in rows)
        owners = [row.consumer_owner for row in rows]
        fair = {owners.count(node) for node in living}
        if not settled or len(rows) != len(SHARDS) or fair != {len(SHARDS) // len(living)}:
            points.append(point)
    return points


def tick(node: Rebalancer) -> None:
    """A tick that meets a busy database is made again, as sensors and agents do."""
    with suppress(StoreError):
        node.tick()


def tick_until(ready: Callable[[], bool], nodes: Groups) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline, list(nodes)
        for living in nodes.values():
            for each in living.values():
                tick(each)
        time.sleep(EVERY_S)


def test_another_node_continues_after_a_kill_at_each_step(mariadb_url: str) -> None:
    store = open_store(mariadb_url, upgrade=True)
    for point in POINTS:
        store.create_group(Group(key_of(point), timeout_s=T_S, handoff_limit_s=HANDOFF_S))
        if point is not Failpoint.IN_SYNC_SHARDS:
            store.sync_shards(key_of(point), SHARDS, observer="test")
    holders: Groups = {
        point: {HOLDER: rebalancer(store, point, HOLDER)}
        for point in (*BESIDE_A_DEAD_HOLDER, *BESIDE_A_LIVE_HOLDER)
    }
    tick_until(lambda: not unbalanced(store, holders), holders)
    living: Groups = {point: holders[point] for point in BESIDE_A_LIVE_HOLDER}
    for point in living:
        for row in SHARDS:
            opened = store.open_tenure(key_of(point), row.shard, HOLDER, f"run-{row.shard}")
            assert isinstance(opened, Opened)
    kill_at_every_step(mariadb_url, living)
    assert {point: verify(store, key_of(point)) for point in POINTS} == {
        point: [] for point in POINTS
    }
    for point in POINTS:
        store.sync_shards(key_of(point), SHARDS, observer="test")
    rest: Groups = {
        point: {**living.get(point, {}), NEXT: rebalancer(store, point, NEXT)} for point in POINTS
    }
    tick_until(lambda: not unbalanced(store, rest), rest)
    assert {point: verify(store, key_of(point)) for point in POINTS} == {
        point: [] for point in POINTS
    }
    store.close()


def kill_at_every_step(url: str, living: Groups) -> None:
    """Start and lose a process for each failpoint, while the living holders continue."""
    with ExitStack() as stack:
        started = {point: stack.enter_context(doomed(url, point)) for point in POINTS}
        tick_until(lambda: all(each.poll() is not None for each in started.values()), living)
        ended = {point: process.returncode for point, process in started.items()}
    assert ended == dict.fromkeys(POINTS, -signal.SIGKILL)


def main(url: str, point: Failpoint) -> None:
    """Serve a separate node until the failpoint ends the process."""
    store = open_store(url)
    store.sync_shards(key_of(point), SHARDS, observer="killed")
    own = rebalancer(store, point, KILLED)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        tick(own)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1], Failpoint[sys.argv[2]])
