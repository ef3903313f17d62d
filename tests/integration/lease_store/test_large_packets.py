"""A statement larger than the server accepts is distinguished from a server that is down."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import StoreError, StoreUnavailable
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, DataFile, Intent
from dagster_leasehold.lease_store.outcomes import Changed
from tests.conformance.world import A, World, X
from tests.database_server import DatabaseServer
from tests.integration.lease_store.conftest import KEY

pytestmark = pytest.mark.servers("mariadb", "mysql")

LIMIT = 1 << 20


@pytest.fixture
def limited(server: DatabaseServer, store_url: str) -> Generator[World]:
    """A store whose server takes packets of up to 1 MiB."""
    [[before]] = server.execute("SELECT @@GLOBAL.max_allowed_packet")
    server.execute(f"SET GLOBAL max_allowed_packet = {LIMIT}")
    store = open_store(store_url)
    try:
        yield World(store, KEY)
    finally:
        store.close()
        server.execute(f"SET GLOBAL max_allowed_packet = {before}")


@pytest.mark.parametrize("name", ["x" * 150, "'" * 150], ids=["plain", "escaped"])
def test_a_statement_larger_than_the_server_accepts_is_reported_as_such(
    limited: World, name: str
) -> None:
    limited.group()
    limited.join(A)
    limited.add(X)
    [tenure] = limited.hold(A, X)
    limited.store.record_intents([Intent(tenure, 0, "0", "9")])

    def commit(files: int) -> object:
        made = tuple(DataFile(f"{name}{number}", 1, 1) for number in range(files))
        batch = BatchCommit(tenure, 0, "0", "9", "attempt", made, BatchStatistics())
        return limited.store.commit([batch])[X]

    with pytest.raises(StoreError, match="max_allowed_packet") as refused:
        commit(6_000)
    assert not isinstance(refused.value, StoreUnavailable)
    assert "nothing was changed" in str(refused.value)
    assert limited.shard(X).check_point is None
    assert isinstance(commit(100), Changed)
