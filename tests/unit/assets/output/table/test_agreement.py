"""Columns of a transform: agreed on before anything is committed, and read back from the table."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.table.columns import ColumnAgreement, columns_of
from tests.table_engines import duckdb_query, duckdb_rows, polars_rows, pyiceberg_rows
from tests.unit.assets.output.table.publishing_world import Publishing

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
LOCAL = MOMENT.replace(tzinfo=None)


@pytest.fixture
def publishing(tmp_path: Path) -> Publishing:
    return Publishing(tmp_path)


def return_columns(publishing: Publishing, **columns: tuple[pa.DataType, Any]) -> None:
    """Add columns, with the same value in all rows, to the raw ones."""

    def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
        for name, (kind, value) in columns.items():
            rows = rows.append_column(name, pa.array([value] * rows.num_rows, kind))
        return rows

    publishing.world.sweeper.keeps = transform


def consume_and_publish(publishing: Publishing, **columns: tuple[pa.DataType, Any]) -> str:
    """Publish new records with these columns; return where the table's metadata is."""
    world = publishing.world
    for shard in world.ids:
        world.append(shard, 1)
    return_columns(publishing, **columns)
    reports = world.consume()
    assert all(report.stopped is not StopReason.FAILED for report in reports.values()), reports
    publishing.publish()
    return publishing.metadata_at()


def own_rows(publishing: Publishing) -> list[dict[str, Any]]:
    """Return all rows, as this package reads them."""
    world = publishing.world
    return CommittedOutput(world.store, world.key, world.place).dataset().to_table().to_pylist()


TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "price": (pa.decimal128(12, 3), Decimal("-1.250"), Decimal("-1.250")),
    "zoned": (
        pa.timestamp("ns", tz="Asia/Kolkata"),
        MOMENT.astimezone(timezone(timedelta(hours=5.5))),
        MOMENT,
    ),
    "local": (pa.timestamp("us"), LOCAL, LOCAL),
    "day": (pa.date64(), date(1969, 2, 28), date(1969, 2, 28)),
    "clock": (pa.time32("s"), time(23, 59, 58), time(23, 59, 58)),
    "flag": (pa.bool_(), True, True),
    "half": (pa.float16(), 0.5, 0.5),
    "raw": (pa.large_binary(), b"\x00\xff", b"\x00\xff"),
    "text": (pa.dictionary(pa.int8(), pa.string()), "ü", "ü"),
    "unset": (pa.int64(), None, None),
    "nested": (
        pa.struct([("days", pa.large_list(pa.date32())), ("n", pa.uint8()), ("none", pa.int8())]),
        {"days": [date(2026, 1, 1), None], "n": 255, "none": None},
        {"days": [date(2026, 1, 1), None], "n": 255, "none": None},
    ),
    "empty": (pa.list_(pa.struct([("at", pa.timestamp("s", tz="UTC"))])), [], []),
}


def test_each_kind_of_column_is_read_as_it_was_returned(publishing: Publishing) -> None:
    at = consume_and_publish(
        publishing, **{name: (kind, value) for name, (kind, value, _) in TYPES.items()}
    )
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    rows = pyiceberg_rows(at)
    assert len(rows) == 22
    assert all({name: row[name] for name in TYPES} == expected for row in rows)
    assert list(rows[0])[:6] == ["shard_id", "cursor", "event_time", "key", "value", "attributes"]
    assert duckdb_query(at, ", ".join(TYPES)) == [tuple(expected.values())] * 22


def test_a_column_without_a_type_is_null_until_it_has_one(publishing: Publishing) -> None:
    at = consume_and_publish(publishing, later=(pa.null(), None))
    assert "later" not in pyiceberg_rows(at)[0]
    at = consume_and_publish(publishing, later=(pa.date32(), date(2026, 1, 1)))
    at = consume_and_publish(publishing, later=(pa.null(), None))
    counts = "count(*), count(later), max(later)"
    assert duckdb_query(at, counts) == [(26, 2, date(2026, 1, 1))]


NOTHING = pa.struct([])
UNTYPED: dict[str, tuple[pa.DataType, Any]] = {
    "texts": (pa.list_(pa.null()), []),
    "nulls": (pa.list_(pa.null()), [None]),
    "record": (NOTHING, {}),
    "records": (pa.list_(NOTHING), [{}]),
    "half": (pa.struct([("a", pa.int32()), ("b", pa.null())]), {"a": 1, "b": None}),
    "pairs": (pa.map_(pa.string(), pa.null()), [("k", None)]),
    "deep": (pa.list_(pa.struct([("a", pa.list_(NOTHING))])), [{"a": []}]),
}
TYPED: dict[str, tuple[pa.DataType, Any]] = {
    "texts": (pa.list_(pa.string()), ["x"]),
    "nulls": (pa.list_(pa.int32()), [1]),
    "record": (pa.struct([("a", pa.int32())]), {"a": 1}),
    "records": (pa.list_(pa.struct([("a", pa.int32())])), [{"a": 1}]),
    "half": (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": "x"}),
    "pairs": (pa.map_(pa.string(), pa.int32()), [("k", 1)]),
    "deep": (
        pa.list_(pa.struct([("a", pa.list_(pa.struct([("b", pa.bool_())])))])),
        [{"a": [{"b": True}]}],
    ),
}


def test_parts_of_columns_without_a_type_are_null_until_they_have_one(
    publishing: Publishing,
) -> None:
    """Method: a batch of inferred types, one that has values in every part, and one as before."""
    at = consume_and_publish(publishing, **UNTYPED)
    assert duckdb_query(at, "count(*), count(half), min(half.a)") == [(22, 22, 1)]
    consume_and_publish(publishing, **TYPED)
    at = consume_and_publish(publishing, **UNTYPED)
    old: dict[str, Any] = dict.fromkeys(UNTYPED) | {"half": {"a": 1, "b": None}}
    new = {name: value for name, (_, value) in TYPED.items()}
    for rows in (pyiceberg_rows(at), polars_rows(at), duckdb_rows(at), own_rows(publishing)):
        seen = [{name: row[name] for name in UNTYPED} for row in rows]
        assert (seen.count(old), seen.count(new)) == (24, 2)


def test_a_first_publication_without_records_makes_a_table_that_engines_read(
    publishing: Publishing,
) -> None:
    """Method: the transform leaves every record of the first batches out."""
    world = publishing.world
    world.sweeper.keeps = lambda rows: rows.slice(0, 0)
    world.consume()
    publishing.publish()
    at = publishing.metadata_at()
    assert duckdb_query(at, "count(*), count(shard_id)") == [(0, 0)]
    assert pyiceberg_rows(at) == polars_rows(at) == own_rows(publishing) == []
    at = consume_and_publish(publishing, n=(pa.int32(), 1))
    assert duckdb_query(at, "count(*), sum(n)", "shard_id = '0'") == [(1, 1)]


NARROW = {
    "n": (pa.int32(), 1),
    "f": (pa.float32(), 0.5),
    "d": (pa.decimal128(8, 2), Decimal("1.25")),
    "s": (pa.struct([("a", pa.int32())]), {"a": 1}),
    "l": (pa.list_(pa.float32()), [0.5, None]),
    "m": (pa.map_(pa.string(), pa.decimal128(8, 2)), [("k", Decimal("1.25"))]),
}
WIDE = {
    "n": (pa.int64(), 2**40),
    "f": (pa.float64(), 0.1),
    "d": (pa.decimal128(30, 2), Decimal(10**20)),
    "s": (pa.struct([("b", pa.string()), ("a", pa.int64())]), {"a": 2**40, "b": "new"}),
    "l": (pa.list_(pa.float64()), [0.1]),
    "m": (pa.map_(pa.string(), pa.decimal128(30, 2)), [("k", Decimal(10**20))]),
}
READ_BACK = "n, f, d, s.a, s.b, l[1], m['k']"


def test_widened_columns_are_read_with_narrow_files(publishing: Publishing) -> None:
    consume_and_publish(publishing, **NARROW)
    at = consume_and_publish(publishing, **WIDE)
    old = (1, 0.5, Decimal("1.25"), 1, None, 0.5, Decimal("1.25"))
    new = (2**40, 0.1, Decimal(10**20), 2**40, "new", 0.1, Decimal(10**20))
    assert sorted(duckdb_query(at, READ_BACK)) == [*[old] * 22, *[new] * 2]
    at = consume_and_publish(publishing, **NARROW)
    rows = [
        (row["n"], row["f"], row["d"], row["s"]["a"], row["s"]["b"], row["l"][0], row["m"][0][1])
        for row in pyiceberg_rows(at)
    ]
    assert sorted(rows) == [*[old] * 24, *[new] * 2]


def test_a_type_that_does_not_fit_is_refused_before_the_commit(publishing: Publishing) -> None:
    consume_and_publish(publishing, n=(pa.int64(), 1))
    world = publishing.world
    store, key = world.store, world.key
    for shard in world.ids:
        world.append(shard, 3)
    batches = store.batches(key)
    check_points = [row.check_point for row in store.snapshot(key).shards]
    agreed = store.publication(key)
    return_columns(publishing, new=(pa.bool_(), True), n=(pa.string(), "one"))
    reports = world.consume()
    sentence = (
        "Column 'n' is long in the table, but string in the new records: use the type of the "
        "table, or give the column another name."
    )
    assert {(each.stopped, each.error) for each in reports.values()} == {
        (StopReason.FAILED, sentence)
    }
    assert store.batches(key) == batches
    assert [row.check_point for row in store.snapshot(key).shards] == check_points
    assert store.publication(key) == agreed
    assert publishing.publish().explanation == "Everything that is committed is published."
    at = consume_and_publish(publishing, n=(pa.int32(), 2))
    assert duckdb_query(at, "count(*), sum(n)") == [(30, 22 + 2 * 8)]


def test_two_runs_that_add_columns_at_once_agree_or_one_is_refused(publishing: Publishing) -> None:
    store, key = publishing.world.store, publishing.world.key
    slow, fast, late = (ColumnAgreement(store, key) for _ in range(3))

    def columns(**types: pa.DataType):
        return columns_of(pa.schema(list(types.items())))

    for each in (slow, late):
        each.agree([columns(a=pa.int32())])
    fast.agree([columns(b=pa.string()), columns(a=pa.int64())])
    agreed = slow.agree([columns(c=pa.bool_())])
    both = columns(a=pa.int64(), b=pa.string(), c=pa.bool_())
    assert list(agreed.columns) == both
    with pytest.raises(TransformError, match="Column 'b' is string in the table"):
        late.agree([columns(b=pa.bool_())])
    row = store.publication(key)
    assert row is not None
    assert row.columns == agreed
