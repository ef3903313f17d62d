"""A stream that is consumed and published, and its table as an engine that is not ours reads it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from pyiceberg.table.metadata import TableMetadataUtil

from dagster_leasehold.assets.output.table.completeness import ShardTimesReader
from dagster_leasehold.assets.output.table.group_table import build_publisher
from dagster_leasehold.assets.output.table.publish_locks import PublishReport, take_lock
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.table_engines import duckdb_query
from tests.unit.assets.consumption_world import NODE, OTHER, World

NOW_MS = 1_800_000_000_000


@dataclass
class Publishing:
    """The publisher of a world's stream, and the content of its table.

    Attributes:
        folder: the world's folder.
        settings: the settings of the table.
        catalog: the catalog of the table; the lease database by default.
        store: used instead of the world's store, if given.
    """

    folder: Path
    settings: TableSettings = field(default_factory=TableSettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    world: World = field(default=None)  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        self.world = self.world or World(self.folder)
        self.store: Any = self.world.store
        self.new_id = uuid4
        self.now_s = 0.0
        self.shard_times = ShardTimesReader(self.stream, self.world.store, lambda: self.now_s)
        self.incarnations = {node.name: node.incarnation for node in self.nodes()}

    @property
    def stream(self) -> ShardStream:
        """The world's stream with the settings of this table."""
        return replace(self.world.stream, iceberg=self.settings)

    def nodes(self) -> Any:
        return self.world.store.snapshot(self.world.key).nodes

    def publisher(self, store: Any = None) -> Any:
        return build_publisher(
            store=store or self.store,
            key=self.world.key,
            settings=self.settings,
            catalog=self.catalog,
            place=self.world.place,
            now_ms=lambda: NOW_MS,
            new_id=self._id,
            watermark=self.world.stream.watermark_of_batch,
        )

    def _id(self) -> UUID:
        return self.new_id()

    def lock(self, node: NodeName = NODE) -> PublishLock | PublishReport:
        name = self.settings.table_name(self.catalog.name, self.world.key)
        nodes = {node: self.incarnations[node]}
        return take_lock(self.world.store, self.world.key, name, nodes)

    def publish(self, node: NodeName = NODE) -> PublishReport:
        """Take the lock and publish once, with a publisher that remembers nothing."""
        seen = self.shard_times.read()
        lock = self.lock(node)
        assert isinstance(lock, PublishLock), lock
        report = self.publisher().publish(lock, seen)
        self.store.release_publish_lock(lock)
        return report

    def metadata_at(self) -> str:
        """The location of the table's newest metadata, in the lease database."""
        name = self.settings.table_name(self.catalog.name, self.world.key)
        pointer = self.world.store.table_pointer(name)
        assert pointer is not None
        return pointer.location

    def metadata(self) -> Any:
        """The table's newest metadata."""
        path = Path(self.metadata_at().removeprefix("file://"))
        return TableMetadataUtil.parse_raw(path.read_text("utf-8"))

    def published(self, at: str | None = None) -> list[bytes]:
        """The values of all records in the table, in order, as DuckDB reads them."""
        return sorted(row[0] for row in duckdb_query(at or self.metadata_at(), "value"))

    def committed(self) -> list[bytes]:
        """The values of all committed records, by the ledger."""
        values = (self.world.committed(shard) for shard in self.world.ids)
        return sorted(value for each in values for value in each)


__all__ = ["NODE", "OTHER", "Publishing"]
