"""A dataset as one file: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.output.committed_dataset import committed_dataset
from dagster_leasehold.assets.output.parquet_file import write_parquet
from tests.synced import synced
from tests.unit.assets.consumption_world import World


def test_all_rows_in_order_and_the_progress(tmp_path: Path) -> None:
    world = World(tmp_path, records=10)
    world.consume()
    dataset = committed_dataset(world.store, world.key, world.output)
    told: list[int] = []
    rows = write_parquet(dataset, tmp_path / "all.parquet", told.append)
    written = pq.read_table(tmp_path / "all.parquet")
    assert written.equals(dataset.to_table())
    assert (rows, told[-1], told) == (written.num_rows, rows, sorted(told))


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    world = World(tmp_path, records=10)
    world.consume()
    dataset = committed_dataset(world.store, world.key, world.output)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        write_parquet(dataset, folder / "all.parquet", interrupted)
    assert list(folder.iterdir()) == []


def test_a_file_is_on_the_disk_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, records=10)
    world.consume()
    dataset = committed_dataset(world.store, world.key, world.output)
    with synced(monkeypatch) as paths:
        write_parquet(dataset, tmp_path / "all.parquet")
    assert paths[-1] == tmp_path
    assert paths[0].name.startswith(".all.parquet.")
