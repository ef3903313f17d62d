"""Units of output, read in pages while rows are deleted: each batch is seen once.

Method: 200 batches on SQLite, of which one file has ten around the border of the first page. The
rows of nine of them are merged into the tenth's row when a reader has read ten rows of that page.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.output.units import unit_files, units_of
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchRewrite, DataFile, RewriteKind
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.roles.operations import PAGE_FIRST_ROWS
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from tests.aged_store import KEY, RECORDS, Age, fill

FAR = datetime(2200, 1, 1, tzinfo=UTC)
AGE = Age(200, shards=1)
(SHARD,) = AGE.names
MERGED = range(PAGE_FIRST_ROWS - 4, PAGE_FIRST_ROWS + 6)


class PrunedMeanwhile:
    """A store whose rows are merged once, during the first page of a read of the ledger."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.pruned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def each_batch(self, *args: Any, **named: Any) -> Iterator[Batch]:
        """Rows, and the fold after ten of them."""
        for place, row in enumerate(self._store.each_batch(*args, **named)):
            if place == 10 and not self.pruned:
                self.prune()
            yield row

    def prune(self) -> None:
        """Merge rows that can be merged."""
        self.pruned = True
        gone = 0
        while (portion := self._store.prune_batches(KEY, SHARD, before=FAR, keep=1)).more:
            gone += portion.rows
        assert gone + portion.rows == len(MERGED) - 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PrunedMeanwhile]:
    url = f"sqlite:///{tmp_path}/leases.db"
    fill(url, AGE)
    inner = open_store(url)
    merge(inner)
    yield PrunedMeanwhile(inner)
    inner.close()


def merge(store: LeaseStore) -> None:
    """Put ten batches' records into one file, as compaction does."""
    rows = list(store.each_batch(KEY, SHARD, numbers=MERGED))
    first, last = rows[0].files[0].first_event_time, rows[-1].files[0].last_event_time
    file = DataFile("merged", RECORDS * len(rows), 1, False, len(rows), first, last)
    rewrites = [
        BatchRewrite(row.sequence, row.generation, () if place else (file,), row.statistics)
        for place, row in enumerate(rows)
    ]
    assert isinstance(store.claim_rewrite(KEY, SHARD, "merge", RewriteKind.COMPACTION), Changed)
    outcome = store.rewrite_batches(KEY, SHARD, "merge", rewrites, reason="merged")
    assert isinstance(outcome, Changed)
    store.release_rewrite(KEY, SHARD, "merge")


def test_files_are_listed_once(store: PrunedMeanwhile) -> None:
    def listed(of: Any) -> list[str]:
        units = units_of(of, KEY, SHARD, range(AGE.per_shard))
        return [file.path for unit in units for file in unit_files(unit, quarantine=False)]

    expected = listed(store._store)
    assert len(expected) == len({*expected}) == AGE.per_shard - len(MERGED) + 1
    assert listed(store) == expected
    assert store.pruned


def test_verify_passes_while_rows_are_pruned(store: PrunedMeanwhile) -> None:
    assert verify(store, KEY) == []  # type: ignore[arg-type]
    assert store.pruned


def test_a_merged_row_is_found_by_each_of_its_numbers(store: PrunedMeanwhile) -> None:
    store.prune()
    for number in MERGED:
        units = list(units_of(store._store, KEY, SHARD, range(number, number + 1)))
        assert [[row.sequence for row in unit] for unit in units] == [[MERGED.start]]
