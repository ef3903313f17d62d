"""A stream whose database goes back to a backup, and whose log drops the records read since."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.output.table.marks import MARK_PROPERTY, Mark
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchStatistics, Intent
from dagster_leasehold.lease_store.outcomes import Changed, Opened
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import ReadRange
from tests.rest_catalog import give_token, rest_catalog
from tests.unit.assets.output.table.test_adoption import Scene, expected
from tests.unit.orchestration.consumed_home import AT_ONCE, KEY, NODE

SHARDS = [ShardId("0"), ShardId("1")]


class Restored(Scene):
    """A scene whose database goes back to a backup, and whose log forgets."""

    def consume_once(self) -> None:
        """Consume one batch of the first shard, as a run that is killed then."""
        store, shard = self.home.store, SHARDS[0]
        opened = store.open_tenure(KEY, shard, NODE, "killed")
        assert isinstance(opened, Opened)
        start, number = opened.check_point or "0", opened.next_sequence
        range_ = ReadRange(shard, start, str(int(start) + 3))
        intent = Intent(opened.tenure, number, range_.start, range_.end)
        assert isinstance(store.record_intents([intent])[shard], Changed)
        result: Any = self.home.sweeper([range_], {shard: range(number, number + 1)})[shard]
        commit = BatchCommit(
            opened.tenure, number, range_.start, range_.end, result.attempt, result.files,
            BatchStatistics(3, None, 3),
        )  # fmt: skip
        assert isinstance(store.commit([commit])[shard], Changed)

    def read(self) -> None:
        """List the shards, and consume their unread records."""
        self.home.join()
        self.runs += 1
        self.home.consume(f"run-{self.runs}")

    def trim(self, *shards: ShardId) -> None:
        """Have the source forget all records that there are."""
        for shard in shards or SHARDS:
            self.home.log.retain(shard, self.home.log.bounds([shard])[shard].end)

    def mark(self) -> Mark:
        metadata = json.loads(Path(self.metadata_at().removeprefix("file://")).read_text())
        return Mark(**json.loads(metadata["properties"][MARK_PROPERTY]))

    def state_files(self) -> list[str]:
        return sorted(path.name for path in self.home.output.glob("metadata/*.shards.json.gz"))

    def check(self, count: int) -> None:
        """Table and ledger have each record once, and every proof holds."""
        assert self.published() == expected(count)
        assert self.committed() == expected(count)
        assert verify(self.home.store, KEY) == []
        heads = self.home.store.heads(KEY)
        assert {head.check_point for head in heads.values()} == {str(count)}


KINDS = ("leasehold", "lake")


def restored_scene(folder: Path, kind: str) -> Restored:
    """The scene with its table in the lease database, or in another catalog."""
    if kind == "leasehold":
        return Restored(folder)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": "none"}
    return Restored(folder, CatalogSettings("lake", properties))


@contextmanager
def restored_in_a_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Restored]:
    """The scene with its table in a catalog that is used over HTTP."""
    give_token(monkeypatch)
    with rest_catalog(folder) as uri:
        yield Restored(folder, CatalogSettings("lake", {"type": "rest", "uri": uri}))


def grown(scene: Restored) -> Path:
    """Consume 8 records of each shard, make a backup, consume 8 more that the source forgets."""
    scene.consume(8)
    scene.publish()
    dump = scene.dump()
    scene.consume(8)
    scene.publish()
    scene.trim()
    return dump


def compact(scene: Restored) -> None:
    place = output_place(scene.home.output)
    compactor = Compactor(store=scene.home.store, key=KEY, output_root=place, run="merging")
    compactor.compact(SHARDS)


def clean(scene: Restored) -> None:
    place = output_place(scene.home.output)
    vacuum(scene.home.store, KEY, place, older_than=AT_ONCE, catalog=scene.catalog)
