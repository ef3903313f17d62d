from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import (
    LogCorrupt,
    LogExists,
    LogNotFound,
    RecordRefused,
    ShardBusy,
    UnknownShard,
    UserMistake,
)
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.local_log import format as file_format
from dagster_leasehold.shard_sources.local_log.format import file_schema
from dagster_leasehold.shard_sources.local_log.reading import combined
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.sources.world import values_of
from tests.unit.shard_sources.local_logs import NOW, ZERO, data_files, new_log, read_all

CHUNKS = st.lists(
    st.lists(st.binary(max_size=60) | st.just(b"\r") | st.just(b"a\r\n"), max_size=12), max_size=8
)


class TestRoundTrip:
    @settings(max_examples=60)
    @given(chunks=CHUNKS, records_max=st.integers(1, 20), bytes_max=st.integers(1, 300))
    def test_planned_ranges_yield_the_appended_records(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        chunks: list[list[bytes]],
        records_max: int,
        bytes_max: int,
    ) -> None:
        """Any bytes, chunks and limits: no record is lost, added or moved."""
        folder = tmp_path_factory.mktemp("log")
        log = new_log(folder / "log")
        with log.writer("0") as writer:
            appended = [writer.append(chunk) for chunk in chunks]
        flat = [value for chunk in chunks for value in chunk]
        assert [int(end) - int(begin) for begin, end in appended] == [len(c) for c in chunks]
        cursor, read = "0", []
        while (plan := log.plan(ZERO, cursor, Limits(records_max, bytes_max))).records:
            part = values_of(list(log.read(ReadRange(ZERO, cursor, plan.end))))
            following = flat[len(read) : len(read) + len(part) + 1]
            assert part == following[: len(part)]
            assert len(part) == plan.records == int(plan.end) - int(cursor)
            self.check_maximal(part, following, records_max, bytes_max)
            read += part
            cursor = plan.end
        assert read == flat

    @staticmethod
    def check_maximal(
        part: list[bytes], following: list[bytes], records_max: int, bytes_max: int
    ) -> None:
        """One more record would exceed a limit, and only a single record exceeds one."""
        assert 1 <= len(part) <= records_max
        assert len(part) == 1 or sum(map(len, part)) <= bytes_max
        if len(following) > len(part) and len(part) < records_max:
            assert sum(map(len, following)) > bytes_max

    def test_keys_times_and_attributes_are_read_as_written(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        record = Record(b"v", key=b"\x00k", event_time=NOW, attributes={"ä": "ö", "": ""})
        log.append("1", [record, b"plain", Record(b"w", key=b"")])
        (batch,) = log.read(ReadRange(ShardId("1"), "0", "3"))
        assert batch.to_pylist() == [
            {
                "shard_id": "1",
                "cursor": "0",
                "event_time": NOW,
                "key": b"\x00k",
                "value": b"v",
                "attributes": [("ä", "ö"), ("", "")],
            },
            {
                "shard_id": "1",
                "cursor": "1",
                "event_time": NOW,
                "key": None,
                "value": b"plain",
                "attributes": [],
            },
            {
                "shard_id": "1",
                "cursor": "2",
                "event_time": NOW,
                "key": b"",
                "value": b"w",
                "attributes": [],
            },
        ]

    def test_many_small_appends_are_read_as_few_batches(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        with log.writer("0") as writer:
            for number in range(500):
                writer.append([b"%d" % number])
        batches = list(log.read(ReadRange(ZERO, "3", "499")))
        assert len(data_files(log)) < 64, "small files are put together"
        assert len(batches) == 1
        assert batches[0].column("cursor").to_pylist() == [str(n) for n in range(3, 499)]

    def test_a_file_is_a_plain_arrow_stream(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        log.append("0", [b"a", b"b"])
        with pa.ipc.open_stream(data_files(log)[0].read_bytes()) as stream:
            assert stream.schema.equals(file_schema())
            assert stream.read_all().column("value").to_pylist() == [b"a", b"b"]

    def test_a_record_at_the_limit_is_accepted_and_a_larger_one_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = new_log(tmp_path / "log")
        large = b"x" * file_format.RECORD_BYTES_MAX
        log.append("0", [large])
        assert read_all(log) == [large]
        with pytest.raises(RecordRefused, match="at most"):
            log.append("0", [b"kept?", large + b"y"])
        with pytest.raises(RecordRefused, match="type str"):
            log.append("0", ["text"])  # pyright: ignore
        with pytest.raises(RecordRefused, match="time zone"):
            log.append("0", [Record(b"", event_time=datetime(2024, 1, 1))])  # noqa: DTZ001
        assert log.bounds([ZERO])[ZERO].end == "1"


class TestTimes:
    @settings(max_examples=60)
    @given(
        seconds=st.lists(st.integers(0, 50), max_size=40),
        asked=st.integers(-1, 51),
        per_append=st.integers(1, 7),
    )
    def test_a_time_finds_the_first_record_at_or_after_it(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        seconds: list[int],
        asked: int,
        per_append: int,
    ) -> None:
        """Event times need not grow."""
        log = new_log(tmp_path_factory.mktemp("log") / "log")
        records = [Record(b"", event_time=NOW + timedelta(seconds=n)) for n in seconds]
        with log.writer("0") as writer:
            for start in range(0, len(records), per_append):
                writer.append(records[start : start + per_append])
        expected = next((n for n, at in enumerate(seconds) if at >= asked), len(seconds))
        assert log.cursor_at(ZERO, NOW + timedelta(seconds=asked)) == str(expected)


class TestMistakes:
    def test_a_missing_log_is_an_error(self, tmp_path: Path) -> None:
        log = LocalLog(tmp_path / "none")
        assert not log.exists
        for attempt in (
            lambda: LocalLog.open(tmp_path / "none"),
            log.list_shards,
            lambda: log.append("0", [b""]),
            lambda: log.split("0"),
            lambda: list(log.read(ReadRange(ZERO, "0", "0"))),
        ):
            with pytest.raises(LogNotFound, match="There is no log in"):
                attempt()
        assert not (tmp_path / "none").exists()

    @pytest.mark.parametrize(
        "stored",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"format": "leasehold-local-log", "version": 3, "shards": []}',
            b'{"format": "leasehold-local-log", "version": 1, "shards": [{}]}',
            b'{"format": "leasehold-local-log", "version": 1, "shards": 5}',
            b"\xff\xfe",
            b"[" * 100_000,
        ],
    )
    def test_a_damaged_catalog_is_an_error(self, tmp_path: Path, stored: bytes) -> None:
        log = new_log(tmp_path / "log")
        (log.root / "catalog.json").write_bytes(stored)
        with pytest.raises(LogCorrupt, match=r"catalog.json is damaged") as raised:
            LocalLog.open(log.root)
        assert "\n" not in str(raised.value)

    def test_a_catalog_with_a_hostile_shard_is_refused(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        path = log.root / "catalog.json"
        path.write_text(path.read_text().replace('"shard": "1"', '"shard": "../../x"'))
        with pytest.raises(LogCorrupt):
            log.list_shards()

    def test_a_log_is_never_created_over_another(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        log.append("0", [b"kept"])
        with pytest.raises(LogExists):
            LocalLog.create(log.root, 4)
        assert read_all(log) == [b"kept"]

    def test_with_exist_ok_an_existing_log_is_returned_unchanged(self, tmp_path: Path) -> None:
        shards = [row.shard for row in new_log(tmp_path / "log").list_shards()]
        log = LocalLog.create(tmp_path / "log", len(shards) + 2, exist_ok=True)
        assert [row.shard for row in log.list_shards()] == shards
        log.append("0", [b"kept"])
        assert read_all(LocalLog.create(log.root, 1, exist_ok=True)) == [b"kept"]

    @pytest.mark.parametrize("shards", [0, -1, 100_001])
    def test_a_number_of_shards_out_of_range_is_refused(self, tmp_path: Path, shards: int) -> None:
        with pytest.raises(UserMistake, match="use 1 to"):
            LocalLog.create(tmp_path / "log", shards)

    def test_a_folder_that_cannot_be_created_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(UserMistake, match="No log can be created"):
            LocalLog.create(tmp_path / "file" / "log", 2)

    def test_the_error_for_an_unknown_shard_lists_the_shards(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        with pytest.raises(UnknownShard, match="it has 0, 1"):
            log.append("7", [b""])

    def test_a_second_writer_is_refused(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        with log.writer("0"):
            with pytest.raises(ShardBusy, match="being written to by another process"):
                log.append("0", [b""])
            log.append("1", [b"others may"])
        log.append("0", [b"now"])


class TestCost:
    def test_a_listed_shard_is_not_compared_with_all_others(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the bounds of many shards would take quadratic time."""
        from dagster_leasehold.shard_sources.local_log import catalog

        log = new_log(tmp_path / "log", shards=3)
        looks: list[int] = []
        monkeypatch.setattr(catalog, "was_removed", lambda number, _: looks.append(number))
        log.bounds([entry.shard for entry in log.list_shards()])
        assert looks == []

    def test_a_catalog_is_parsed_once_per_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Thousands of shards are planned one by one, each without reading thousands of entries."""
        from dagster_leasehold.shard_sources.local_log import catalog

        log = new_log(tmp_path / "log", shards=50)
        parsed: list[int] = []
        real = catalog.CatalogShard.parse
        monkeypatch.setattr(
            catalog.CatalogShard, "parse", lambda row: parsed.append(1) or real(row)
        )
        shards = [entry.shard for entry in log.list_shards()]
        for shard in shards:
            log.plan(shard, "0", Limits())
        log.bounds(shards)
        assert len(parsed) == 50
        log.split("0")
        assert len(log.list_shards()) == 52
        assert len(parsed) == 102


def test_small_batches_are_combined_in_order_up_to_a_size() -> None:
    batches = [pa.record_batch({"value": pa.array([n, n + 1])}) for n in range(0, 20_000, 2)]
    together = list(combined(batches))
    assert [value for batch in together for value in batch["value"].to_pylist()] == [*range(20_000)]
    assert [batch.num_rows for batch in together] == [8192, 8192, 20_000 - 2 * 8192]


def test_combining_no_batches_returns_none() -> None:
    assert list(combined([])) == []
