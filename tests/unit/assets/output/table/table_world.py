"""A table on a disk without a catalog, and engines that are not ours to read it with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.serializers import FromInputFile, ToOutputFile

from dagster_leasehold.assets.output.output_file import event_times, untimed
from dagster_leasehold.assets.output.table.columns import columns_of, merged
from dagster_leasehold.assets.output.table.publication import Operation, SnapshotPlan
from dagster_leasehold.assets.output.table.staging import Staging, new_metadata
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("shard_id", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("n", pa.int32()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("nested", pa.struct([("a", pa.int32()), ("texts", pa.list_(pa.string()))])),
        ("local", pa.timestamp("us")),
    ]
)


class TableWorld:
    """One table; every step of it makes a new metadata file."""

    def __init__(self, root: Path, schema: pa.Schema = SCHEMA) -> None:
        self.root = root
        self.io = PyArrowFileIO({})
        self.columns = columns_of(schema)
        self.metadata = new_metadata(str(root), self.columns, {}, UUID(int=1))
        self._ids, self._names = itertools.count(1), itertools.count()
        self._numbers = itertools.count(1)
        self._files = itertools.count()

    def file(
        self, shard: str, times: Sequence[datetime | None], schema: pa.Schema = SCHEMA, **more: Any
    ) -> tuple[ShardId, DataFile]:
        """Write a file of records at these times; `n` counts them over all files."""
        numbers = [next(self._numbers) for _ in times]
        values: dict[str, list[Any]] = {
            "shard_id": [shard] * len(times),
            "event_time": [*times],
            "n": numbers,
            "price": [None] * len(times),
            "tags": [[("k", "v")]] * len(times),
            "nested": [{"a": 1, "texts": ["x", None]}] * len(times),
            "local": [datetime(2020, 2, 29)] * len(times),  # noqa: DTZ001
            **more,
        }
        rows = pa.table({name: values[name] for name in schema.names}, schema=schema)
        path = f"{next(self._files)}.parquet"
        pq.write_table(rows, self.root / path)
        size = (self.root / path).stat().st_size
        first, last = event_times(rows)
        file = DataFile(path, len(times), size, False, 1, first, last, untimed(rows))
        self.columns = merged(self.columns, columns_of(schema))
        return ShardId(shard), file

    def change(
        self,
        operation: Operation,
        added: Sequence[tuple[ShardId, DataFile]] = (),
        removed: Sequence[tuple[ShardId, DataFile]] = (),
        *,
        keep: int = 100,
        partitioning: Sequence[str] = TableSettings().partitioning,
    ) -> Staging:
        """Add one snapshot."""
        staging = Staging(
            self.io,
            self.metadata,
            1_800_000_000_000,
            lambda: 1_000 + next(self._ids),
            lambda: f"name-{next(self._names)}",
        )
        staging.evolve(self.columns, partitioning, ())
        paths = {file.path: shard for shard, file in removed}
        staging.add(SnapshotPlan(operation, tuple(added), paths), {"leasehold.publication": "p"})
        staging.expire(keep)
        self.metadata = staging.metadata
        return staging

    def write(self) -> str:
        """Write the metadata as readers find it, and return its path."""
        path = f"{self.root}/metadata/{next(self._names):05d}.metadata.json"
        ToOutputFile.table_metadata(self.metadata, self.io.new_output(path))
        assert FromInputFile.table_metadata(self.io.new_input(path)) == self.metadata
        return path
