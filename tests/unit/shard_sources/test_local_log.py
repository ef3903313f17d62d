from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lease_store.errors import (
    CursorExpired,
    LogCorrupt,
    LogExists,
    LogNotFound,
    RecordRefused,
    ReshardingRefused,
    ShardBusy,
    ShardReadOnly,
    UnknownShard,
    UserMistake,
)
from lease_store.identifiers import ShardId
from shard_sources.local_log import LocalLog, Record
from shard_sources.local_log import format as segment_format
from shard_sources.local_log.format import segment_schema
from shard_sources.local_log.segments import list_segments
from shard_sources.local_log.writing import shard_folder
from shard_sources.source import Limits, Position, ReadRange, ShardSource
from tests.unit.shard_sources.source_conformance import SourceConformance, values_of

NOW = datetime(2024, 6, 1, tzinfo=UTC)
ZERO = ShardId("0")
CHUNKS = st.lists(
    st.lists(st.binary(max_size=60) | st.just(b"\r") | st.just(b"a\r\n"), max_size=12), max_size=8
)


def new_log(folder: Path, shards: int = 2, **options: int) -> LocalLog:
    return LocalLog.create(folder, shards, clock=lambda: NOW, **options)


def read_all(log: LocalLog, shard: str = "0") -> list[bytes]:
    key = ShardId(shard)
    bounds = log.bounds([key])[key]
    return values_of(list(log.read(ReadRange(key, bounds.begin, bounds.end))))


def data_files(log: LocalLog, shard: str = "0") -> list[Path]:
    return [name.data for name in list_segments(shard_folder(log.root, ShardId(shard)))]


class TestConformance(SourceConformance):
    def new_source(self, folder: Path) -> LocalLog:
        return new_log(folder, segment_bytes_max=2_000)

    def put(self, source: ShardSource, shard: ShardId, values: list[bytes], at: datetime) -> None:
        assert isinstance(source, LocalLog)
        with source.writer(shard) as writer:
            for number, value in enumerate(values):
                writer.append([Record(value, event_time=at + timedelta(seconds=number))])

    def split(self, source: ShardSource, shard: ShardId) -> tuple[ShardId, ShardId]:
        assert isinstance(source, LocalLog)
        return source.split(shard)


class TestRoundTrip:
    @settings(max_examples=60, deadline=None)
    @given(
        chunks=CHUNKS,
        records_max=st.integers(1, 20),
        bytes_max=st.integers(1, 300),
        segment_bytes=st.sampled_from([1, 900, 10**6]),
    )
    def test_what_is_planned_and_read_is_what_was_appended(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        chunks: list[list[bytes]],
        records_max: int,
        bytes_max: int,
        segment_bytes: int,
    ) -> None:
        """Any bytes, any chunks, any limits, any segment size: nothing is lost, added or moved."""
        folder = tmp_path_factory.mktemp("log")
        log = new_log(folder / "log", segment_bytes_max=segment_bytes)
        with log.writer("0", durable=False) as writer:
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
        """One more record would break a limit, and none was broken unless it stands alone."""
        assert 1 <= len(part) <= records_max
        assert len(part) == 1 or sum(map(len, part)) <= bytes_max
        if len(following) > len(part) and len(part) < records_max:
            assert sum(map(len, following)) > bytes_max

    def test_keys_times_and_attributes_come_back(self, tmp_path: Path) -> None:
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
        with log.writer("0", durable=False) as writer:
            for number in range(500):
                writer.append([b"%d" % number])
        batches = list(log.read(ReadRange(ZERO, "3", "499")))
        assert len(batches) == 1
        assert batches[0].column("cursor").to_pylist() == [str(n) for n in range(3, 499)]

    def test_a_segment_is_a_plain_arrow_stream(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        log.append("0", [b"a", b"b"])
        with pa.ipc.open_stream(data_files(log)[0].read_bytes()) as stream:
            assert stream.schema.equals(segment_schema())
            assert stream.read_all().column("value").to_pylist() == [b"a", b"b"]

    def test_a_large_record_passes_and_a_larger_one_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = new_log(tmp_path / "log")
        large = b"x" * segment_format.RECORD_BYTES_MAX
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
    @settings(max_examples=60, deadline=None)
    @given(
        seconds=st.lists(st.integers(0, 50), max_size=40),
        asked=st.integers(-1, 51),
        per_append=st.integers(1, 7),
        segment_bytes=st.sampled_from([1, 10**6]),
    )
    def test_finds_the_first_record_at_or_after_a_time(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        seconds: list[int],
        asked: int,
        per_append: int,
        segment_bytes: int,
    ) -> None:
        """Event times need not grow."""
        log = new_log(tmp_path_factory.mktemp("log") / "log", segment_bytes_max=segment_bytes)
        records = [Record(b"", event_time=NOW + timedelta(seconds=n)) for n in seconds]
        with log.writer("0", durable=False) as writer:
            for start in range(0, len(records), per_append):
                writer.append(records[start : start + per_append])
        expected = next((n for n, at in enumerate(seconds) if at >= asked), len(seconds))
        assert log.cursor_at(ZERO, NOW + timedelta(seconds=asked)) == str(expected)


class TestResharding:
    def test_shards_divide_all_hashes(self, tmp_path: Path) -> None:
        listed = new_log(tmp_path / "log", shards=8).list_shards()
        assert [entry.shard for entry in listed] == [str(n) for n in range(8)]
        assert listed[0].hash_begin == "0" * 32
        assert listed[-1].hash_end == "f" * 32
        assert listed[1].hash_begin == "2" + "0" * 31
        assert all(a.hash_end == b.hash_begin for a, b in pairwise(listed))

    def test_a_split_is_visible_as_a_whole(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        log.append("0", [b"before"])
        assert log.split("0", "1000" + "0" * 28) == ("2", "3")
        listed = {entry.shard: entry for entry in log.list_shards()}
        assert (listed["2"].hash_begin, listed["2"].hash_end) == ("0" * 32, "1000" + "0" * 28)
        assert listed["3"].hash_end == listed["0"].hash_end
        with pytest.raises(ShardReadOnly, match="append to its children"):
            log.append("0", [b"late"])
        with pytest.raises(ShardReadOnly):
            log.split("0")
        log.append("2", [b"after"])
        assert (read_all(log), read_all(log, "2")) == ([b"before"], [b"after"])

    def test_an_empty_shard_that_was_split_is_finished(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        log.split("0")
        bounds = log.bounds([ZERO])[ZERO]
        assert (bounds.begin, bounds.end, bounds.finished) == ("0", "0", True)
        assert log.plan(ZERO, "0", Limits()).last

    def test_a_merge_needs_neighbours(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log", shards=4)
        with pytest.raises(ReshardingRefused, match="do not touch"):
            log.merge("0", "2")
        with pytest.raises(ReshardingRefused, match="itself"):
            log.merge("1", "1")
        assert log.merge("2", "1") == "4"
        child = log.list_shards()[4]
        assert child.parents == ("2", "1")
        assert (child.hash_begin, child.hash_end) == ("4" + "0" * 31, "c" + "0" * 31)

    @pytest.mark.parametrize("at", ["0", "8" + "0" * 31, "f" * 32, "x", "", "1" * 33, "0x1"])
    def test_a_split_outside_the_range_is_refused(self, tmp_path: Path, at: str) -> None:
        log = new_log(tmp_path / "log")
        with pytest.raises(ReshardingRefused):
            log.split("0", at)
        assert len(log.list_shards()) == 2

    def test_a_split_waits_for_no_writer_forever(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        with log.writer("0") as writer:
            writer.append([b"a"])
            waiting = log.writer("0", wait_s=0.05)
            with pytest.raises(ShardBusy):
                waiting.__enter__()
        assert read_all(log) == [b"a"]


class TestRetention:
    def filled(self, folder: Path) -> LocalLog:
        """Ten segments of one record each, an hour apart."""
        log = new_log(folder / "log", segment_bytes_max=1)
        with log.writer("0") as writer:
            for hour in range(10):
                writer.append([Record(b"%d" % hour, event_time=NOW + timedelta(hours=hour))])
        assert len(data_files(log)) == 10
        return log

    def test_removes_what_is_older(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        assert log.retain("0", NOW + timedelta(hours=4)) == "4"
        assert read_all(log) == [b"%d" % n for n in range(4, 10)]
        with pytest.raises(CursorExpired, match="begins at 4"):
            log.plan(ZERO, "3", Limits())
        with pytest.raises(CursorExpired):
            list(log.read(ReadRange(ZERO, "0", "9")))
        assert log.cursor_at(ZERO, NOW) == "4"

    def test_removes_what_is_before_a_cursor(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        assert log.retain("0", "7") == "7"
        assert log.retain("0", "7") == "7"
        assert log.cursor_at(ZERO, Position.BEGIN) == "7"

    def test_keeps_the_end_when_everything_goes(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        log.split("0")
        assert log.retain("0", NOW + timedelta(days=9)) == "10"
        bounds = log.bounds([ZERO])[ZERO]
        assert (bounds.begin, bounds.end, bounds.finished) == ("10", "10", True)
        assert log.plan(ZERO, "10", Limits()).last

    def test_appends_go_on_after_everything_went(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        log.retain("0", "10")
        assert log.append("0", [b"next"]) == ("10", "11")
        assert read_all(log) == [b"next"]

    def test_leaves_the_last_segment_to_its_writer(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        with log.writer("0") as writer:
            assert log.retain("0", "10") == "9"
            writer.append([b"more"])
        assert read_all(log) == [b"9", b"more"]


class TestLines:
    def test_a_line_keeps_all_but_its_line_feed(self, tmp_path: Path) -> None:
        file = tmp_path / "a.log"
        file.write_bytes(b"one\r\n\n\rtwo\r\r\n\xff\x00\nlast")
        log = new_log(tmp_path / "log", shards=1)
        seen: list[int] = []
        assert log.append_lines(file, progress=seen.append) == {"0": ("0", "5")}
        assert read_all(log) == [b"one\r", b"", b"\rtwo\r\r", b"\xff\x00", b"last"]
        assert seen[-1] == 5

    @settings(max_examples=40, deadline=None)
    @given(
        content=st.binary(max_size=400).map(lambda b: b.replace(b"\x01", b"\n")),
        shards=st.integers(1, 5),
        block=st.integers(1, 50),
        spread=st.sampled_from(["round_robin", "hash"]),
    )
    def test_all_lines_arrive_in_order(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        content: bytes,
        shards: int,
        block: int,
        spread: str,
    ) -> None:
        from shard_sources.local_log import Spread, lines

        folder = tmp_path_factory.mktemp("load")
        file = folder / "input"
        file.write_bytes(content)
        log = new_log(folder / "log", shards=shards)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lines, "_READ_BYTES", block)
            log.append_lines(file, spread=Spread(spread))
        expected = content.split(b"\n")
        if expected[-1] == b"":
            expected.pop()
        loaded = [read_all(log, str(n)) for n in range(shards)]
        assert sorted(chain.from_iterable(loaded)) == sorted(expected)
        if spread == "round_robin":
            assert loaded == [expected[n::shards] for n in range(shards)]
        for part in loaded:
            # Each shard's lines, equal ones included, stand in the order of the file.
            rest = iter(expected)
            assert all(line in rest for line in part)

    def test_a_pipe_is_read_like_a_file(self, tmp_path: Path) -> None:
        import os
        import threading

        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        log = new_log(tmp_path / "log", shards=1)
        feeder = threading.Thread(target=lambda: pipe.write_bytes(b"one\ntwo\n"))
        feeder.start()
        log.append_lines(pipe)
        feeder.join(timeout=10)
        assert read_all(log) == [b"one", b"two"]

    def test_more_shards_than_a_process_may_open_files(self, tmp_path: Path) -> None:
        """Each shard takes three open files while it is written to."""
        import resource

        file = tmp_path / "a.log"
        file.write_bytes(b"".join(b"%d\n" % n for n in range(400)))
        log = new_log(tmp_path / "log", shards=200)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 450), hard))
        try:
            appended = log.append_lines(file)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(appended) == 200
        assert read_all(log, "199") == [b"199", b"399"]

    def test_a_missing_file_loads_nothing(self, tmp_path: Path) -> None:
        file = tmp_path / "a.log"
        file.write_bytes(b"one\n")
        log = new_log(tmp_path / "log")
        with pytest.raises(UserMistake, match=r"missing.log cannot be read: No such file"):
            log.append_lines(file, tmp_path / "missing.log")
        with pytest.raises(UserMistake, match="Is a directory"):
            log.append_lines(file, tmp_path)
        assert read_all(log) == []

    def test_a_line_too_long_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from shard_sources.local_log import lines

        monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 10)
        monkeypatch.setattr(lines, "_READ_BYTES", 4)
        file = tmp_path / "a.log"
        for ending in (b"\nafter\n", b""):
            log = new_log(tmp_path / f"log{len(ending)}", shards=1)
            file.write_bytes(b"one\ntwo\n" + b"x" * 11 + ending)
            with pytest.raises(RecordRefused, match=r"Line 3 of .* the 2 lines before it"):
                log.append_lines(file)
            assert read_all(log) == [b"one", b"two"]


class TestMistakes:
    def test_a_missing_log(self, tmp_path: Path) -> None:
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
            b'{"format": "leasehold-local-log", "version": 2, "shards": []}',
            b'{"format": "leasehold-local-log", "version": 1, "shards": [{}]}',
            b'{"format": "leasehold-local-log", "version": 1, "shards": 5}',
            b"\xff\xfe",
            b"[" * 100_000,
        ],
    )
    def test_a_damaged_catalog(self, tmp_path: Path, stored: bytes) -> None:
        log = new_log(tmp_path / "log")
        (log.root / "catalog.json").write_bytes(stored)
        with pytest.raises(LogCorrupt, match=r"catalog.json is damaged") as found:
            LocalLog.open(log.root)
        assert "\n" not in str(found.value)

    def test_a_catalog_with_a_hostile_shard(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        path = log.root / "catalog.json"
        path.write_text(path.read_text().replace('"shard": "1"', '"shard": "../../x"'))
        with pytest.raises(LogCorrupt):
            log.list_shards()

    def test_a_log_is_never_made_over_another(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        log.append("0", [b"kept"])
        with pytest.raises(LogExists):
            LocalLog.create(log.root, 4)
        assert read_all(log) == [b"kept"]

    @pytest.mark.parametrize("shards", [0, -1, 100_001])
    def test_a_number_of_shards_out_of_range(self, tmp_path: Path, shards: int) -> None:
        with pytest.raises(UserMistake, match="use 1 to"):
            LocalLog.create(tmp_path / "log", shards)

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(UserMistake, match="No log can be made"):
            LocalLog.create(tmp_path / "file" / "log", 2)

    def test_an_unknown_shard_is_told_which_ones_exist(self, tmp_path: Path) -> None:
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
    def test_a_catalog_is_parsed_once_per_version(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Thousands of shards are planned one by one without reading thousands of entries each."""
        from shard_sources.local_log import catalog

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
