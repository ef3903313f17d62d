"""Transforms of Arrow tables: their declaration, and the outputs that cannot be committed."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle  # noqa: TID253

from dagster_leasehold.assets.arrow_transform import (
    ArrowTransform,
    arrow_transform,
    checked,
    name_of,
)
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.spark.users_code import ship_code_of
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import record_schema

ZERO = ShardId("0")
RECORDS = pa.Table.from_pylist(
    [
        {
            "shard_id": "0",
            "cursor": str(n),
            "event_time": datetime(2026, 1, 31, tzinfo=UTC),
            "key": b"k",
            "value": b"v",
            "attributes": [],
        }
        for n in range(3)
    ],
    record_schema(),
)


@arrow_transform
def clean(records: pa.Table) -> pa.Table:
    """Keep all but the first."""
    return records.slice(1)


class Prefix:
    """A transform with state."""

    def __call__(self, records: pa.Table) -> pa.Table:
        return records


def test_a_declared_transform_keeps_the_name_and_call_of_its_function() -> None:
    assert isinstance(clean, ArrowTransform)
    assert clean.__doc__ == "Keep all but the first."
    assert clean(RECORDS).num_rows == 2
    assert name_of(clean) == f"{__name__}.clean"
    assert name_of(arrow_transform(Prefix())) == name_of(Prefix()) == f"{__name__}.Prefix"


def test_a_declared_transform_travels_by_value() -> None:
    """Goal: a worker that cannot import the user's module applies it all the same."""
    ship_code_of(clean, object())
    try:
        assert __name__ in cloudpickle.list_registry_pickle_by_value()
        cargo = cloudpickle.dumps(clean)
        assert b"Keep all but the first" in cargo
        assert pickle.loads(cargo)(RECORDS).num_rows == 2
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    "transform",
    [
        lambda records: records,
        lambda records: records.slice(0, 0),
        lambda records: records.select(["shard_id"]),
        lambda records: records.append_column("quarantine_error", pa.nulls(3, pa.string())),
        lambda records: pa.concat_tables([records, records]),
    ],
)
def test_output_that_can_be_committed_is_returned(transform: Callable[[Any], pa.Table]) -> None:
    output = transform(RECORDS)
    assert checked(output, ZERO, "t") is output


@pytest.mark.parametrize(
    ("message", "transform"),
    [
        ("returned NoneType: return the Arrow table", lambda _: None),
        ("returned RecordBatch: return the Arrow table", lambda rows: rows.to_batches()[0]),
        ("dropped or changed the column shard_id", lambda rows: rows.drop_columns(["shard_id"])),
        (
            "dropped or changed the column shard_id",
            lambda rows: rows.set_column(0, "shard_id", pa.array([0, 0, 0])),
        ),
        (
            "changed values of the column shard_id, which were all '0'",
            lambda rows: rows.set_column(0, "shard_id", pa.array(["0", "1", "0"])),
        ),
        (
            "changed values of the column shard_id",
            lambda rows: rows.set_column(0, "shard_id", pa.array(["0", None, "0"])),
        ),
        (
            "returns quarantine_error without cursor, key: keep these columns",
            lambda rows: rows.drop_columns(["cursor", "key"]).append_column(
                "quarantine_error", pa.nulls(3, pa.string())
            ),
        ),
        (
            "returned several columns named 'key'",
            lambda rows: rows.append_column("key", pa.nulls(3, pa.string())),
        ),
    ],
)
def test_other_output_is_refused_in_one_sentence(
    message: str, transform: Callable[[Any], Any]
) -> None:
    with pytest.raises(TransformError) as caught:
        checked(transform(RECORDS), ZERO, "module.clean")
    assert str(caught.value).startswith("The transform module.clean ")
    assert message in str(caught.value)


def test_text_and_bytes_of_every_library_have_one_type() -> None:
    """Goal: output of a library with other layouts is written like all other output."""
    kinds = {
        "shard_id": pa.large_string(),
        "cursor": pa.dictionary(pa.int32(), pa.string()),
        "event_time": pa.timestamp("us", tz="Europe/Berlin"),
        "key": pa.large_binary(),
        "value": pa.binary_view(),
        "attributes": pa.map_(pa.string(), pa.string()),
    }
    output = RECORDS.cast(pa.schema(list(kinds.items()))).append_column(
        "parts", pa.array([["x"], [], None], pa.large_list(pa.large_string()))
    )
    plain = checked(output, ZERO, "t")
    assert plain.drop_columns(["parts"]) == RECORDS
    assert plain.column("parts").type == pa.list_(pa.string())
