from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import (
    CursorExpired,
    ReshardingRefused,
    ShardBusy,
    ShardReadOnly,
)
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.local_log.writing import SMALL_FILES_MAX
from dagster_leasehold.shard_sources.source import Limits, Position, ReadRange
from tests.unit.shard_sources.local_logs import NOW, ZERO, data_files, new_log, read_all


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

    def test_a_split_waits_for_a_writer_with_a_limit(self, tmp_path: Path) -> None:
        log = new_log(tmp_path / "log")
        with log.writer("0") as writer:
            writer.append([b"a"])
            waiting = log.writer("0", wait_s=0.05)
            with pytest.raises(ShardBusy):
                waiting.__enter__()
        assert read_all(log) == [b"a"]


class TestRetention:
    def filled(self, folder: Path) -> LocalLog:
        """Ten files of one record each, an hour apart."""
        log = new_log(folder / "log")
        with log.writer("0") as writer:
            for hour in range(10):
                writer.append([Record(b"%d" % hour, event_time=NOW + timedelta(hours=hour))])
        assert len(data_files(log)) == 10
        return log

    def test_retention_removes_older_files(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        assert log.retain("0", NOW + timedelta(hours=4)) == "4"
        assert read_all(log) == [b"%d" % n for n in range(4, 10)]
        with pytest.raises(CursorExpired, match="begins at 4"):
            log.plan(ZERO, "3", Limits())
        with pytest.raises(CursorExpired):
            list(log.read(ReadRange(ZERO, "0", "9")))
        assert log.cursor_at(ZERO, NOW) == "4"

    def test_retention_removes_files_before_a_cursor(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        assert log.retain("0", "7") == "7"
        assert log.retain("0", "7") == "7"
        assert log.cursor_at(ZERO, Position.BEGIN) == "7"

    def test_retention_of_everything_keeps_the_end(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        log.split("0")
        assert log.retain("0", NOW + timedelta(days=9)) == "10"
        bounds = log.bounds([ZERO])[ZERO]
        assert (bounds.begin, bounds.end, bounds.finished) == ("10", "10", True)
        assert log.plan(ZERO, "10", Limits()).last

    def test_appends_continue_after_everything_was_removed(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        log.retain("0", "10")
        assert log.append("0", [b"next"]) == ("10", "11")
        assert read_all(log) == [b"next"]

    def test_retention_works_beside_an_active_writer(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        with log.writer("0") as writer:
            assert log.retain("0", "10") == "10"
            assert data_files(log) == []
            for number in range(SMALL_FILES_MAX):
                writer.append([b"%d" % number])
        assert read_all(log) == [b"%d" % number for number in range(SMALL_FILES_MAX)]

    def test_a_compacted_file_is_removed_with_its_last_record(self, tmp_path: Path) -> None:
        log = self.filled(tmp_path)
        with log.writer("0") as writer:
            for number in range(10, SMALL_FILES_MAX + 1):
                writer.append([b"%d" % number])
        assert len(data_files(log)) == 2
        assert log.retain("0", str(SMALL_FILES_MAX - 1)) == "0"
        assert log.retain("0", str(SMALL_FILES_MAX)) == str(SMALL_FILES_MAX)
        assert read_all(log) == [b"%d" % SMALL_FILES_MAX]
