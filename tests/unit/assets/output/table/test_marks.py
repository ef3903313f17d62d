"""The mark of a table and the number of its records, after commits of any program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.output.table.marks import (
    MARK_PROPERTY,
    Mark,
    mark_of,
    table_conflict,
    table_records,
)
from dagster_leasehold.assets.output.table.publication import Operation
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.publication_rows import Publication, TableName
from tests.unit.assets.output.table.table_world import NEW_YEAR, TableWorld

NAME = TableName("lake", "leasehold", "orders")


@pytest.fixture
def world(tmp_path: Path) -> TableWorld:
    """A table of three snapshots, with five records."""
    world = TableWorld(tmp_path)
    for count in (2, 2, 1):
        world.change(Operation.APPEND, [world.file("s", [NEW_YEAR] * count)])
    return world


def changed(metadata: Any, **summary: str | None) -> Any:
    """The same table, whose newest snapshot has other values."""
    values = dict(metadata.current_snapshot().summary.additional_properties)
    for name, value in summary.items():
        values.pop(name.replace("_", "-"), None)
        if value is not None:
            values[name.replace("_", "-")] = value
    own = metadata.current_snapshot()
    kind = type(own.summary)
    newest = own.model_copy(update={"summary": kind(own.summary.operation, **values)})
    return metadata.model_copy(update={"snapshots": [*metadata.snapshots[:-1], newest]})


def mark(publication: str, sequence: int) -> Mark:
    return Mark(publication, sequence, 1, 1, "states.json.gz")


def marked(world: TableWorld, publication: str = "p", sequence: int = 3) -> Any:
    properties = {MARK_PROPERTY: str(mark(publication, sequence))}
    return world.metadata.model_copy(update={"properties": properties})


def trouble(world: TableWorld, metadata: Any, *, records: int | None = 5, at: int = -1) -> Any:
    snapshot = world.metadata.snapshots[at].snapshot_id
    row = Publication(GroupKey.parse("g", "s"), 1, last="p", snapshot=snapshot, records=records)
    return table_conflict(NAME, row, metadata, world.io)


def test_the_mark_is_read_as_it_was_written(world: TableWorld) -> None:
    assert mark_of(marked(world, "q", 7)) == mark("q", 7)
    assert mark_of(world.metadata) == Mark("p", 3), "another program has removed the property"


def test_records_are_counted_if_the_newest_snapshot_has_no_count(world: TableWorld) -> None:
    assert table_records(world.io, world.metadata) == 5
    assert table_records(world.io, changed(world.metadata, total_records=None)) == 5


def test_an_unchanged_table_passes(world: TableWorld) -> None:
    assert trouble(world, marked(world)) is None
    assert trouble(world, marked(world), records=None) is None, "nobody has counted yet"


@pytest.mark.parametrize(
    ("records", "words"), [(3, "added 2 records to"), (9, "removed 4 records from")]
)
def test_changed_records_are_reported(world: TableWorld, records: int, words: str) -> None:
    assert f"Another program has {words} the table" in trouble(
        world, marked(world), records=records
    )


def test_delete_files_of_another_program_are_reported(world: TableWorld) -> None:
    """Goal: a delete that is merged on reading changes no data file, and is no secret."""
    metadata = changed(marked(world), total_delete_files="2")
    assert "has 2 delete files" in trouble(world, metadata)


def test_a_snapshot_that_follows_ours_is_no_roll_back(world: TableWorld) -> None:
    assert trouble(world, marked(world, sequence=2), at=-2) is None


def test_a_roll_back_is_reported_after_our_snapshot_expired(world: TableWorld) -> None:
    """1. A fourth snapshot was ours. 2. The table was rolled back, and it expired."""
    row = Publication(GroupKey.parse("g", "s"), 1, last="p", snapshot=4711, records=5)
    words = table_conflict(NAME, row, marked(world, sequence=4), world.io)
    assert "has rolled back the table" in str(words)
