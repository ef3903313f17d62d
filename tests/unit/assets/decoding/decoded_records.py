"""Records to decode, for tests of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.decoding.stream_decoding import decoding
from dagster_leasehold.shard_sources.source import record_schema


def records(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> pa.Table:
    """Return a table of records of one shard."""
    count = len(values)
    schema = record_schema()
    columns = {
        "shard_id": pa.array(["0"] * count),
        "cursor": pa.array([str(index) for index in range(count)]),
        "event_time": pa.nulls(count, schema.field("event_time").type),
        "key": pa.array(keys or [None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "attributes": pa.nulls(count, schema.field("attributes").type),
    }
    return pa.table(columns, schema=schema)


def decoded(
    settings: Decode, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
) -> list[dict[str, Any]]:
    """Return the columns that decoding adds, without nulls, and what became of the value."""
    table = decoding(settings)(records(values, keys))
    plain = table.drop_columns(["shard_id", "cursor", "event_time", "key", "attributes"])
    return [{k: v for k, v in row.items() if v is not None} for row in plain.to_pylist()]
