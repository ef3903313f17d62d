"""Times outside the calendar become null, and are kept as attributes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import RecordRefused
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.event_times import (
    FIRST,
    LAST,
    MISTIMED,
    in_utc,
    mistimed_cursors,
    moment_of,
    outside_calendar,
    readable,
)
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.record_columns import RecordColumns
from dagster_leasehold.shard_sources.source import record_schema

WEST = timezone(timedelta(hours=-12))
EAST = timezone(timedelta(hours=12))


def batch_of(*times: int | datetime | None) -> pa.RecordBatch:
    columns = RecordColumns(ShardId("0"))
    for cursor, time in enumerate(times):
        columns.cursors.append(cursor)
        columns.times.append(time)
        columns.keys.append(None)
        columns.add_values([b"v"])
        columns.add_attributes({"own": "x"})
    return columns.batch()


@given(st.lists(st.none() | st.integers() | st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_every_number_is_a_time_or_is_kept_as_text(times: list[int | None]) -> None:
    batch = batch_of(*times)
    assert batch.schema.equals(record_schema())
    rows = batch.to_pylist(maps_as_pydicts="strict")
    for time, row in zip(times, rows, strict=True):
        moment = None if time is None else moment_of(time)
        assert row["event_time"] == moment
        lost = time is not None and moment is None
        assert row["attributes"] == {"own": "x"} | ({MISTIMED: str(time)} if lost else {})
    mistimed = [at for at, row in enumerate(rows) if MISTIMED in row["attributes"]]
    assert mistimed_cursors(batch) == [str(at) for at in mistimed]
    assert readable(batch) is batch


def test_a_local_time_outside_the_calendar_in_utc_is_null() -> None:
    last, first = datetime(9999, 12, 31, 23, tzinfo=WEST), datetime(1, 1, 1, 1, tzinfo=EAST)
    batch = batch_of(last, LAST, FIRST, first)
    assert batch.column("event_time").to_pylist() == [None, LAST, FIRST, None]
    assert (in_utc(last), in_utc(first), in_utc(LAST)) == (LAST, FIRST, LAST)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_columns_of_every_unit_are_checked(unit: str) -> None:
    kind = pa.timestamp(unit)
    ends = pa.array([-(2**63), 0, 2**63 - 1, None], pa.int64()).cast(kind)
    mask = outside_calendar(ends)
    assert (mask and mask.to_pylist()) == (None if unit == "ns" else [True, False, True, False])
    assert outside_calendar(pa.array([0, None], pa.int64()).cast(kind)) is None
    assert outside_calendar(pa.array([2**62])) is None


def test_the_local_log_refuses_times_that_cannot_be_read_back(tmp_path: Path) -> None:
    log = LocalLog.create(tmp_path / "log", 1)
    shard = log.list_shards()[0].shard
    for time in (datetime(9999, 12, 31, 23, tzinfo=WEST), datetime(1, 1, 1, 1, tzinfo=EAST)):
        with pytest.raises(RecordRefused, match="outside the years 1 to 9999"):
            log.append(shard, [Record(b"x", event_time=time)])
    log.append(shard, [Record(b"x", event_time=LAST.astimezone(UTC))])
    assert log.times_at({shard: "0"}) == {shard: LAST}
