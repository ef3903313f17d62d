"""Rows that a long shard list has servers read, as they count them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dagster_leasehold.lease_store.group_rows import Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.node_planning import CHECK_S, NodePlanner
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rebalancing import FEW_SHARDS, Rebalancer
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.sql_store import SqlStore, rows_in_sql
from tests.database_server import DatabaseServer
from tests.integration.lease_store.conftest import KEY
from tests.manual_clock import ManualClock

pytestmark = [pytest.mark.long, pytest.mark.servers("mariadb", "mysql")]

SHARDS, PAGE = 6_000, 2_000
NODES = [NodeName(f"n{number}") for number in range(20)]
OF_A_NODE = SHARDS // len(NODES)


class RowCount:
    """The rows that a server has read in a block."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.rows = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the rows that are read inside the block."""
        quiet = -self._read_until_now() + self._read_until_now()
        before = self._read_until_now()
        yield
        self.rows = self._read_until_now() - before - quiet

    def _read_until_now(self) -> int:
        rows = self.server.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in rows)


@pytest.fixture
def shared(store: SqlStore) -> SqlStore:
    """A store with a group whose shards are shared by its nodes."""
    store.create_group(Group(KEY))
    names = [ShardId(str(number)) for number in range(SHARDS)]
    store.sync_shards(KEY, [ShardListing(name) for name in names], observer="test")
    for name in NODES:
        store.register(KEY, Node(name, 0, f"{name}-1"), observer="test")
    claims = {name: (NODES[place % len(NODES)], 0) for place, name in enumerate(names)}
    store.claim(KEY, claims, observer="test", reason="test")
    return store


def test_a_page_reads_no_row_of_another_page(
    server: DatabaseServer, shared: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that read the group from its start for each page would read the list three times."""
    monkeypatch.setattr(rows_in_sql, "SHARDS_PER_PAGE", PAGE)
    count = RowCount(server)
    with count.counting():
        assert len(shared.snapshot(KEY).shards) == SHARDS
    assert count.rows < 2 * SHARDS


def test_a_node_that_leaves_reads_no_shard_of_other_nodes(
    server: DatabaseServer, shared: SqlStore
) -> None:
    """It frees the shards that it holds and that it waits for: both owners have an index."""
    count = RowCount(server)
    with count.counting():
        left = shared.leave(KEY, NODES[0], f"{NODES[0]}-1")
    assert isinstance(left, Changed)
    assert len(left.shards) == OF_A_NODE
    assert count.rows < 10 * OF_A_NODE < SHARDS


def test_an_idle_tick_of_a_planner_for_all_nodes_reads_no_shard(
    server: DatabaseServer, shared: SqlStore
) -> None:
    planner = Rebalancer(
        shared,
        KEY,
        serves=(),
        timing=Timing(),
        observer="planner",
        incarnation_of=str,
        beats=False,
        serving=lambda nodes: tuple(node.name for node in nodes),
        follows_above=FEW_SHARDS,
    )
    assert len(planner.tick().progress) == SHARDS
    count = RowCount(server)
    with count.counting():
        report = planner.tick()
    assert report.decisions == ()
    assert count.rows < 10 * len(NODES)


def test_a_check_of_a_settled_group_by_an_agent_reads_no_shard(
    server: DatabaseServer, shared: SqlStore
) -> None:
    clock = ManualClock()
    planner = NodePlanner(shared, KEY, NODES[0], observer="agent", clock=clock)
    planner.plan()
    clock.now_s += CHECK_S
    count = RowCount(server)
    with count.counting():
        report = planner.plan()
    assert report is not None
    assert report.decisions == ()
    assert count.rows < 10
