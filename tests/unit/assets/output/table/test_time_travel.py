"""A snapshot within retention shows its records after all later rewrites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from tests.unit.assets.consumption_world import ArrowSweeper
from tests.unit.assets.output.table.publishing_world import Publishing


def values_at(publishing: Publishing, snapshot: int) -> list[bytes]:
    table: Any = StaticTable.from_metadata(publishing.metadata_at())
    return sorted(table.scan(snapshot_id=snapshot).to_arrow()["value"].to_pylist())


def test_each_snapshot_shows_its_records(tmp_path: Path) -> None:
    publishing = Publishing(tmp_path)
    world = publishing.world
    shown: dict[int, list[bytes]] = {}

    def publish() -> list[bytes]:
        assert publishing.publish().snapshot is not None
        current = publishing.metadata().current_snapshot()
        shown[current.snapshot_id] = publishing.published()
        return publishing.published()

    world.consume()
    first = publish()
    sweeper = ArrowSweeper(world.log, world.place)
    sweeper.keeps = lambda rows: rows.slice(1)
    Replayer(
        stream=world.stream, store=world.store, output_root=world.place, sweeper=sweeper,
        run="replay", ended=lambda _: False,
    ).replay(world.ids, ReplaySpan())  # fmt: skip
    replayed = publish()
    assert len(replayed) < len(first) == 20
    Compactor(store=world.store, key=world.key, output_root=world.place, run="merge").compact(
        world.ids
    )
    assert publish() == replayed
    for shard in world.ids:
        world.append(shard, 3)
    world.consume("run-2")
    assert len(publish()) == len(replayed) + 6
    operations = [each.summary.operation.value for each in publishing.metadata().snapshots]
    assert operations == ["append", "overwrite", "replace", "append"]
    assert {at: values_at(publishing, at) for at in shown} == shown
