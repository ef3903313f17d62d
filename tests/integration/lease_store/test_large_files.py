"""A merged file of very many ledger rows expires as a whole, and later rows after it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.ledger_rows import BatchRewrite, DataFile, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rules.verification import verify
from tests.aged_store import KEY, NODE, RECORDS, Age, fill
from tests.conformance.world import World

FAR = datetime(2200, 1, 1, tzinfo=UTC)
MERGED, BEHIND = 6_000, 300
AGE = Age(MERGED + BEHIND, shards=1)
(SHARD,) = AGE.names


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=[pytest.mark.mysql, pytest.mark.long]),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An old store of one shard."""
    if request.param == "sqlite":
        address = f"sqlite:///{tmp_path}/leases.db"
    else:
        address = request.getfixturevalue(request.param).create_database("large_files")
    fill(address, AGE)
    return address


@pytest.mark.parametrize("between", ["committed", "withdrawn"])
def test_expiry_continues_after_a_file_with_more_rows_than_a_page(url: str, between: str) -> None:
    """Rows that were withdrawn between two batches of the file go with it."""
    store = open_store(url)
    rows, merged = MERGED + BEHIND, MERGED
    if between == "withdrawn":
        store.force_checkpoint(KEY, SHARD, str(RECORDS), observer="ops", reason="read again")
        opened = store.open_tenure(KEY, SHARD, NODE, "again")
        assert isinstance(opened, Opened)
        for number in range(1, 5):
            bounds = (str(number * RECORDS), str((number + 1) * RECORDS), rows + number - 1)
            assert World(store, KEY).consume(opened.tenure, *bounds) == Changed()
        rows, merged = rows + 4, 3
    for event in store.pending_events(KEY):
        store.mark_delivered(KEY, [event.sequence])
    committed = store.batches(KEY, SHARD)
    file = DataFile("merged.parquet", merged * RECORDS, 9, batches=merged)
    rewrites = [
        BatchRewrite(row.sequence, row.generation, () if number else (file,), row.statistics)
        for number, row in enumerate(committed[:merged])
    ]
    assert isinstance(store.claim_rewrite(KEY, SHARD, "merge", RewriteKind.COMPACTION), Changed)
    assert isinstance(
        store.rewrite_batches(KEY, SHARD, "merge", rewrites, reason="merged"), Changed
    )
    store.release_rewrite(KEY, SHARD, "merge")

    ripe = store.expirable(KEY, SHARD, before=FAR)
    assert [row.sequence for row in ripe] == [row.sequence for row in committed[:merged]]
    expired = 0
    while (portion := store.expire_batches(KEY, SHARD, before=FAR, through=2**62)).more:
        expired += portion.rows
    assert expired == rows - 1
    assert [row.sequence for row in store.batches(KEY, SHARD)] == [committed[-1].sequence]
    (summary,) = [each for each in store.summaries(KEY, SHARD) if each.expired]
    assert summary.expired is not None
    assert summary.expired.batches == len(committed) - 1
    assert verify(store, KEY) == []
    store.close()
