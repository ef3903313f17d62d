"""A long shard list is read page by page, and no row of it twice, as the servers count."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.lease_store.sql_store import verbs
from tests.database_server import DatabaseServer

KEY = GroupKey.parse("group", "stream")
SHARDS, PAGE = 6_000, 2_000
NODES = [NodeName(f"n{number}") for number in range(20)]


def rows_looked_at(server: DatabaseServer) -> int:
    """Count what the server's handlers have read since it started."""
    rows = server.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
    return sum(int(value) for _, value in rows)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def test_a_page_reads_no_row_of_the_others(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that read the group from its start for each page would read the list three times."""
    server: DatabaseServer = request.getfixturevalue(kind)
    store = open_store(server.create_database("pages"), upgrade=True)
    store.create_group(Group(KEY))
    names = [ShardId(str(number)) for number in range(SHARDS)]
    store.sync_shards(KEY, [ShardListing(name) for name in names], observer="test")
    for name in NODES:
        store.register(KEY, Node(name, 0, f"{name}-1"), observer="test")
    claims = {name: (NODES[place % len(NODES)], 0) for place, name in enumerate(names)}
    store.claim(KEY, claims, observer="test", reason="test")
    monkeypatch.setattr(verbs, "SHARDS_PER_PAGE", PAGE)
    quiet = -rows_looked_at(server) + rows_looked_at(server)
    before = rows_looked_at(server)
    assert len(store.snapshot(KEY).shards) == SHARDS
    looked_at = rows_looked_at(server) - before - quiet
    store.close()
    server.drop_database("pages")
    assert looked_at < 2 * SHARDS
