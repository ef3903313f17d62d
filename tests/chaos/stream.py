"""The stream that is consumed during incidents: record n of shard s is an Avro record `s:n`.

Its table is partitioned by a column of the records, and sorted by another in compaction. Its runs
follow their shards, and wait between two batches most of the time. One of the two nodes decodes
with a DataFrame transform and the other with `decode`, so that each continues the other's work.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.shard_stream import Retention, ShardStream
from dagster_leasehold.assets.table_settings import TableSettings
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits

STREAM = "orders"
KEY = GroupKey.parse("default", STREAM)
NODES = ("a", "b")
SHARDS = 4
TIMEOUT_S = float(os.environ.get("LEASEHOLD_CHAOS_TIMEOUT_S", "10"))
"""T; a busy machine needs more than an idle one."""
HANDOFF_LIMIT_S = 4.0
WITH_FRAMES = "a"
"""The node whose deployment has a DataFrame transform."""
SCHEMA = Path(__file__).with_name("order.avsc")
_PARSED = fastavro.parse_schema(json.loads(SCHEMA.read_text("utf-8")))
PARTS = 3
KINDS = ("clicks", "views", "no route")
ORDER = "n desc"
TABLE = TableSettings(partitioning=("shard_id", "part"), sort_order=(ORDER,))


def log_folder(home: Path) -> Path:
    return home / "logs" / STREAM


def record(shard: str, number: int) -> bytes:
    """Return the value of a record."""
    value = io.BytesIO()
    kind = KINDS[number % len(KINDS)]
    fields = {"text": f"{shard}:{number}", "n": number, "part": number % PARTS, "kind": kind}
    fastavro.schemaless_writer(value, _PARSED, fields)
    return value.getvalue()


def decoded(rows: Any) -> Any:
    """Return a DataFrame with the columns that `decode` makes, in place of the values."""

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = {"text": pa.string(), "n": pa.int64(), "part": pa.int32(), "kind": pa.string()}
        for batch in batches:
            at = batch.schema.get_field_index("value")
            values = [io.BytesIO(value) for value in batch.column(at).to_pylist()]
            fields: list[Any] = [fastavro.schemaless_reader(each, _PARSED, None) for each in values]
            field = batch.schema.field(at)
            rows = batch.set_column(at, field, pa.nulls(len(values), field.type))
            for name, kind in types.items():
                rows = rows.append_column(name, pa.array([each[name] for each in fields], kind))
            yield rows

    types = "shard_id string, cursor string, event_time timestamp, key binary, value binary"
    columns = "attributes map<string, string>, text string, n long, part int, kind string"
    return rows.mapInArrow(decode, f"{types}, {columns}")


def stream_of(home: Path, nodes: Sequence[str] = ()) -> ShardStream:
    """Return the stream as a deployment of these nodes declares it.

    Runs are short and batches small, so that every step comes round often.
    """
    frames = WITH_FRAMES in nodes
    return ShardStream(
        name=STREAM,
        source=LocalLog(log_folder(home)),
        transform=decoded if frames else None,
        decode=None if frames else Decode("avro", schema=str(SCHEMA)),
        route="kind",
        iceberg=TABLE,
        retention=Retention(compact_after_s=10.0),
        limits=Limits(records_max=20_000),
        pace=Pace(
            shards_per_run=2,
            run_budget_s=6.0,
            commit_interval_s=1.5,
            idle_limit_s=4.0,
            handoff_limit_s=HANDOFF_LIMIT_S,
        ),
    )
