"""What every source must do, as named cases; a subclass says how to make a log and fill it."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lease_store.errors import SourceError
from lease_store.identifiers import ShardId
from shard_sources.registry import reader_from_options
from shard_sources.source import Limits, Position, ReadRange, ShardSource, record_schema

START = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
VALUES = [b"first", b"\r", b"", bytes(range(256)), b"x" * 10_000, "Grüße".encode()] * 5


def values_of(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


class SourceConformance:
    """Subclass it, and give the three methods below."""

    @abstractmethod
    def new_source(self, folder: Path) -> ShardSource:
        """An empty log of at least two shards."""

    @abstractmethod
    def put(self, source: ShardSource, shard: ShardId, values: list[bytes], at: datetime) -> None:
        """Append values, one event-time second apart from `at` on."""

    @abstractmethod
    def split(self, source: ShardSource, shard: ShardId) -> tuple[ShardId, ShardId]:
        """Split a shard."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> ShardSource:
        return self.new_source(tmp_path / "log")

    @pytest.fixture
    def shard(self, source: ShardSource) -> ShardId:
        shard = source.list_shards()[0].shard
        self.put(source, shard, VALUES, START)
        return shard

    def test_lists_writable_shards_without_parents(self, source: ShardSource) -> None:
        listed = source.list_shards()
        assert len(listed) >= 2
        assert all(not entry.parents and not entry.read_only for entry in listed)
        assert all(entry.hash_begin < entry.hash_end for entry in listed)

    def test_an_empty_shard_begins_where_it_ends(self, source: ShardSource) -> None:
        shard = source.list_shards()[1].shard
        bounds = source.bounds([shard])[shard]
        assert bounds.begin == bounds.end
        assert not bounds.finished
        plan = source.plan(shard, bounds.begin, Limits())
        assert (plan.end, plan.records, plan.last) == (bounds.end, 0, False)
        assert source.lag(shard, bounds.begin, bounds) == 0

    def test_reads_all_that_was_appended(self, source: ShardSource, shard: ShardId) -> None:
        bounds = source.bounds([shard])[shard]
        batches = list(source.read(ReadRange(shard, bounds.begin, bounds.end)))
        assert values_of(batches) == VALUES
        assert {id_ for batch in batches for id_ in batch.column(0).to_pylist()} == {shard}
        times = [time for batch in batches for time in batch.column("event_time").to_pylist()]
        assert times == [START + timedelta(seconds=n) for n in range(len(VALUES))]

    def test_every_batch_has_exactly_the_schema(self, source: ShardSource, shard: ShardId) -> None:
        bounds = source.bounds([shard])[shard]
        for batch in source.read(ReadRange(shard, bounds.begin, bounds.end)):
            assert batch.schema.equals(record_schema(), check_metadata=True)
            batch.validate(full=True)

    def test_batches_follow_each_other(self, source: ShardSource, shard: ShardId) -> None:
        """Planning from end to end and reading each range gives the same as one read of all."""
        bounds = source.bounds([shard])[shard]
        cursor, read = bounds.begin, []
        while cursor != bounds.end:
            plan = source.plan(shard, cursor, Limits(records_max=7, bytes_max=15_000))
            assert 1 <= plan.records <= 7
            part = values_of(list(source.read(ReadRange(shard, cursor, plan.end))))
            assert len(part) == plan.records
            assert len(part) == 1 or sum(map(len, part)) <= 15_000
            read += part
            cursor = plan.end
        assert read == VALUES

    def test_a_record_beyond_the_byte_limit_goes_alone(
        self, source: ShardSource, shard: ShardId
    ) -> None:
        begin = source.cursor_at(shard, Position.BEGIN)
        assert source.plan(shard, begin, Limits(bytes_max=1)).records == 1

    def test_reading_again_yields_the_same(self, source: ShardSource, shard: ShardId) -> None:
        bounds = source.bounds([shard])[shard]
        range_ = ReadRange(shard, bounds.begin, bounds.end)
        assert pa.Table.from_batches(source.read(range_)) == pa.Table.from_batches(
            source.read(range_)
        )

    def test_finds_positions_and_times(self, source: ShardSource, shard: ShardId) -> None:
        bounds = source.bounds([shard])[shard]
        assert source.cursor_at(shard, Position.BEGIN) == bounds.begin
        assert source.cursor_at(shard, Position.END) == bounds.end
        assert source.cursor_at(shard, START - timedelta(days=1)) == bounds.begin
        assert source.cursor_at(shard, START + timedelta(days=1)) == bounds.end
        for at in (timedelta(seconds=3), timedelta(seconds=2.5)):
            found = source.cursor_at(shard, START + at)
            plan = source.plan(shard, found, Limits())
            rest = values_of(list(source.read(ReadRange(shard, found, plan.end))))
            assert rest == VALUES[3:]

    def test_lag_counts_down(self, source: ShardSource, shard: ShardId) -> None:
        bounds = source.bounds([shard])[shard]
        plan = source.plan(shard, bounds.begin, Limits(records_max=4))
        assert source.lag(shard, bounds.begin, bounds) in (len(VALUES), None)
        assert source.lag(shard, plan.end, bounds) in (len(VALUES) - 4, None)

    def test_a_split_shard_ends_and_its_children_name_it(
        self, source: ShardSource, shard: ShardId
    ) -> None:
        children = self.split(source, shard)
        listed = {entry.shard: entry for entry in source.list_shards()}
        assert listed[shard].read_only
        assert all(listed[child].parents == (shard,) for child in children)
        bounds = source.bounds([shard, *children])
        assert bounds[shard].finished
        assert not any(bounds[child].finished for child in children)
        plan = source.plan(shard, bounds[shard].begin, Limits(records_max=3))
        assert not plan.last
        assert source.plan(shard, plan.end, Limits()).last
        assert source.plan(shard, bounds[shard].end, Limits()).last

    def test_a_reader_travels_as_text(self, source: ShardSource, shard: ShardId) -> None:
        """What Spark does: options as strings to a worker, the range by pickle."""
        options = source.spark_options()
        assert all(isinstance(part, str) for pair in options.items() for part in pair)
        bounds = source.bounds([shard])[shard]
        range_ = pickle.loads(pickle.dumps(ReadRange(shard, bounds.begin, bounds.end)))
        assert values_of(list(reader_from_options(options).read(range_))) == VALUES

    @pytest.mark.parametrize("cursor", ["no-cursor", "", "-1", "99999999", "٣", "9" * 50])
    def test_a_foreign_cursor_is_refused_in_one_sentence(
        self, source: ShardSource, shard: ShardId, cursor: str
    ) -> None:
        for attempt in (
            lambda: source.plan(shard, cursor, Limits()),
            lambda: list(source.read(ReadRange(shard, cursor, cursor))),
        ):
            with pytest.raises(SourceError) as refused:
                attempt()
            assert "\n" not in str(refused.value)
