"""A local log in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import ClassVar

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.local_log.catalog import Catalog, load_catalog, save_catalog
from tests.sources.world import NewRecord, Notion, SourceWorld
from tests.unit.shard_sources.local_logs import data_files, file_names, new_log

NO_SERVICE = "it is files in a folder"


class LocalLogWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = {
        Notion.NO_VALUE: "a record is bytes, an empty one included",
        Notion.GROWTH: "a new shard always has parents",
        Notion.NETWORK: NO_SERVICE,
        Notion.THROTTLING: NO_SERVICE,
        Notion.CREDENTIALS: NO_SERVICE,
    }
    source: LocalLog

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.source = new_log(folder / "log")

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        with self.source.writer(shard) as writer:
            for record in records:
                assert record.value is not None
                attributes = dict(record.attributes)
                writer.append([Record(record.value, record.key, record.at, attributes)])

    def split(self, shard: ShardId) -> tuple[ShardId, ShardId]:
        return self.source.split(shard)

    def merge(self, first: ShardId, second: ShardId) -> ShardId:
        return self.source.merge(first, second)

    def trim(self, shard: ShardId) -> None:
        self.fill(shard)
        whole_file = file_names(self.source, shard)[0].end  # small ones may be one by now
        assert self.source.retain(shard, str(max(15, whole_file))) != "0"

    def forget(self, shard: ShardId) -> None:
        catalog = load_catalog(self.source.root)
        rest = tuple(entry for entry in catalog.shards if entry.shard != shard)
        save_catalog(self.source.root, Catalog(rest))
        rmtree(self.source.root / "shards" / shard)

    def damage(self, shard: ShardId) -> None:
        file = data_files(self.source, shard)[0]
        stored = bytearray(file.read_bytes())
        stored[len(stored) // 2] ^= 0xFF
        file.write_bytes(stored)
