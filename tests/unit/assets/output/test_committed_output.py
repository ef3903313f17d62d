"""Committed output is what the ledger names, in its order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.committed_output import (
    committed_files,
    committed_paths,
    iter_records,
)
from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from tests.unit.assets.consumption_world import World

ZERO = ShardId("0")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.consume()
    return world


def test_files_come_in_ledger_order(world: World) -> None:
    files = committed_files(world.store, world.key, world.place)
    assert [(file.shard, file.batch.sequence) for file in files] == [
        ("0", 0),
        ("0", 1),
        ("0", 2),
        ("1", 0),
        ("1", 1),
        ("1", 2),
    ]
    assert all(Path(str(file.path)).stat().st_size == file.file.bytes for file in files)


def test_an_attempt_that_failed_is_no_output(world: World) -> None:
    """Method: a sweep whose commit never came leaves its files; readers do not see them."""
    before = committed_paths(world.store, world.key, world.place)
    world.append(ZERO, 5)

    def unlucky(*_: object) -> None:
        raise TransformError("boom.")

    world.store.commit = unlucky
    world.consume("run-2")
    assert len([*world.output.rglob("*.parquet")]) == len(before) + 1
    assert committed_paths(world.store, world.key, world.place) == before


def test_records_of_one_shard_or_of_all(world: World) -> None:
    every = pa.Table.from_batches(iter_records(world.store, world.key, world.place))
    assert every.column("value").to_pylist() == [*world.expected("0", 10), *world.expected("1", 10)]
    assert world.committed("1") == world.expected("1", 10)


def test_duckdb_reads_the_paths(world: World) -> None:
    duckdb = pytest.importorskip("duckdb")
    paths = committed_paths(world.store, world.key, world.place)
    [(count, shards)] = duckdb.sql(
        f"SELECT count(*), count(DISTINCT shard_id) FROM read_parquet({paths!r})"
    ).fetchall()
    assert (count, shards) == (20, 2)


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_damaged_output_is_one_sentence_and_never_skipped(world: World, damage: str) -> None:
    file = committed_files(world.store, world.key, world.place, ZERO)[1]
    path = Path(str(file.path))
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    seen: list[bytes] = []
    batches = iter_records(world.store, world.key, world.place, ZERO)

    def read_all() -> None:
        for batch in batches:
            seen.extend(batch.column("value").to_pylist())

    with pytest.raises(LogCorrupt) as caught:
        read_all()
    assert seen == world.expected("0", 4), "what came before it is right"
    assert "batch 0.1" in str(caught.value)
    assert "\n" not in str(caught.value)
