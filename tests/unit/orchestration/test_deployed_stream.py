"""A stream with its deployment reads its own table, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.reading import EventSpan, declared_stream
from tests.declared import declare
from tests.environment import forget_settings
from tests.unit.orchestration.consumed_home import ConsumedHome, home_of_process

WRITTEN = {b"%d:%d" % (shard, number) for shard in (0, 1) for number in range(5)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsumedHome]:
    """The home of this process: two shards with five records each, consumed and not published."""
    with home_of_process(tmp_path, monkeypatch, 5) as home:
        yield home


def test_a_dataset_contains_exactly_the_committed_records(home: ConsumedHome) -> None:
    dataset = declared_stream("demo").dataset()
    assert {*dataset.to_table()["value"].to_pylist()} == WRITTEN
    assert dataset.count_rows() == len(WRITTEN)
    home.append(1)
    assert declared_stream("demo").dataset().count_rows() == len(WRITTEN), "not committed yet"
    home.consume("run-2")
    assert declared_stream("demo").dataset().count_rows() == len(WRITTEN) + 2


def test_a_dataset_can_be_limited_to_shards_and_a_span_of_event_time(home: ConsumedHome) -> None:
    stream = declared_stream("demo")
    assert {*stream.dataset(shards=[ShardId("1")]).to_table()["shard_id"].to_pylist()} == {"1"}
    times = sorted(stream.dataset().to_table()["event_time"].to_pylist())
    assert stream.dataset(span=EventSpan(until=times[0])).count_rows() == 0


def test_the_table_is_that_of_pyiceberg(home: ConsumedHome) -> None:
    stream = declared_stream("demo")
    with pytest.raises(TableUnavailable, match=r"leasehold\.demo of stream demo .*NoSuchTable"):
        stream.table()
    assert stream.dataset().count_rows() == len(WRITTEN)
    scan = stream.table().scan(row_filter="shard_id = '0'", selected_fields=("value",))
    assert {*scan.to_arrow()["value"].to_pylist()} == {v for v in WRITTEN if v[:1] == b"0"}


def test_a_stream_without_a_group_has_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_settings(monkeypatch)
    declare(tmp_path, "visits")
    settings = Settings(home=tmp_path, module=None)
    open_store(settings.store_url, upgrade=True).close()
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownGroup):
        declared_stream().dataset()


@pytest.mark.spark
def test_a_frame_contains_the_committed_records(home: ConsumedHome, connect_session: Any) -> None:
    rows = declared_stream("demo").frame(connect_session, shards=[ShardId("0")]).collect()
    assert {bytes(row["value"]) for row in rows} == {v for v in WRITTEN if v[:1] == b"0"}
