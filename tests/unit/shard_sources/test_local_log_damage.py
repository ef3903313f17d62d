"""Torn tails are repaired and never served; damage is named and never skipped."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import LogCorrupt, SourceUnavailable
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.local_log.format import ENTRY_BYTES, IndexEntry
from dagster_leasehold.shard_sources.local_log.heads import HEADS_FILE
from dagster_leasehold.shard_sources.local_log.segments import (
    SegmentName,
    list_segments,
    shard_folder,
)
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.sources.world import values_of

NOW = datetime(2024, 6, 1, tzinfo=UTC)
ZERO = ShardId("0")
WHOLE = [b"first", b"second"]
LAST = [b"third", b"fourth"]


def segments(log: LocalLog) -> list[SegmentName]:
    return list_segments(shard_folder(log.root, ZERO))


def read_all(log: LocalLog) -> list[bytes]:
    bounds = log.bounds([ZERO])[ZERO]
    assert log.plan(ZERO, bounds.begin, Limits()).end == bounds.end
    return values_of(list(log.read(ReadRange(ZERO, bounds.begin, bounds.end))))


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Two appends in one segment."""
    log = LocalLog.create(tmp_path / "log", 1, clock=lambda: NOW)
    log.append("0", WHOLE)
    log.append("0", LAST)
    return log


def heads_of_first_append(log: LocalLog) -> bytes:
    """The file of heads as it was when only the first append had returned."""
    heads = log.root / HEADS_FILE
    record = heads.read_bytes()
    older = LocalLog.create(log.root.parent / "older", 1, clock=lambda: NOW)
    older.append("0", WHOLE)
    content = (older.root / HEADS_FILE).read_bytes()
    shutil.rmtree(older.root)
    assert content != record
    return content


def stored_entry(index: bytes, number: int) -> IndexEntry:
    entry = IndexEntry.unpack(index[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES])
    assert entry is not None
    return entry


def check_repaired(log: LocalLog, records: list[bytes]) -> None:
    """The same before the repair, by the repair, and after it."""
    assert read_all(log) == records
    assert log.append("0", [b"next"]).begin == str(len(records))
    assert read_all(log) == [*records, b"next"]


class TestTornTails:
    def test_bytes_without_an_entry_at_every_length(self, log: LocalLog) -> None:
        """Killed while it wrote the message, or before it wrote the entry."""
        (name,) = segments(log)
        heads = heads_of_first_append(log)
        data, index = name.data.read_bytes(), name.index.read_bytes()
        whole = stored_entry(index, 0).position_end
        for length in range(whole, len(data) + 1):
            name.data.write_bytes(data[:length])
            name.index.write_bytes(index[:ENTRY_BYTES])
            (log.root / HEADS_FILE).write_bytes(heads)
            check_repaired(log, WHOLE)

    def test_an_entry_torn_at_every_byte(self, log: LocalLog) -> None:
        """Killed while it wrote the entry."""
        (name,) = segments(log)
        heads = heads_of_first_append(log)
        data, index = name.data.read_bytes(), name.index.read_bytes()
        for length in range(ENTRY_BYTES, 2 * ENTRY_BYTES):
            name.data.write_bytes(data)
            name.index.write_bytes(index[:length])
            (log.root / HEADS_FILE).write_bytes(heads)
            check_repaired(log, WHOLE)

    def test_a_head_torn_at_every_byte(self, log: LocalLog) -> None:
        """Killed while it wrote the head: the records are whole, and may count."""
        before, after = heads_of_first_append(log), (log.root / HEADS_FILE).read_bytes()
        (name,) = segments(log)
        data, index = name.data.read_bytes(), name.index.read_bytes()
        changed = [at for at in range(len(after)) if before[at] != after[at]]
        for length in (*changed, len(after)):
            name.data.write_bytes(data)
            name.index.write_bytes(index)
            (log.root / HEADS_FILE).write_bytes(after[:length] + before[length:])
            if length == changed[0]:
                assert read_all(log) == WHOLE, "nobody looks beyond a head that is whole"
                assert log.append("0", []) == ("4", "4"), "the next writer takes them over"
            check_repaired(log, WHOLE + LAST)

    def test_a_tail_that_a_power_failure_took_from_a_writer_that_did_not_wait(
        self, log: LocalLog
    ) -> None:
        """The message is torn at every byte below its entry, and the head is as it was written."""
        (name,) = segments(log)
        with log.writer("0", durable=False) as writer:
            writer.append([b"fifth"])
            heads = (log.root / HEADS_FILE).read_bytes()
            data, index = name.data.read_bytes(), name.index.read_bytes()
            assert read_all(log) == [*WHOLE, *LAST, b"fifth"]
        first = stored_entry(index, 1).position_end
        for length in range(first, len(data)):
            name.data.write_bytes(data[:length])
            name.index.write_bytes(index)
            (log.root / HEADS_FILE).write_bytes(heads)
            check_repaired(log, WHOLE + LAST)
        name.data.write_bytes(data[: first - 1])
        name.index.write_bytes(index)
        (log.root / HEADS_FILE).write_bytes(heads)
        with pytest.raises(LogCorrupt):
            read_all(log)

    def test_a_writer_that_did_not_wait_has_all_on_the_disk_when_it_is_closed(
        self, log: LocalLog
    ) -> None:
        (name,) = segments(log)
        with log.writer("0", durable=False) as writer:
            writer.append([b"fifth"])
        data = name.data.read_bytes()
        name.data.write_bytes(data[:-1])
        with pytest.raises(LogCorrupt):
            read_all(log)

    def test_entries_of_zeros(self, log: LocalLog) -> None:
        """The file system grew the index and lost what was written there."""
        (name,) = segments(log)
        with name.index.open("ab") as file:
            file.write(bytes(2 * ENTRY_BYTES + 3))
        check_repaired(log, WHOLE + LAST)

    def test_a_segment_whose_header_is_torn(self, log: LocalLog) -> None:
        """Killed while it began a new segment."""
        (name,) = segments(log)
        following = SegmentName(4, name.folder)
        following.index.write_bytes(b"")
        check = read_all(log)
        following.data.write_bytes(b"\xff\xff")
        assert read_all(log) == check == WHOLE + LAST
        check_repaired(log, WHOLE + LAST)

    def test_what_was_cut_off_is_not_read_by_a_reader_that_is_open(self, log: LocalLog) -> None:
        reading = log.read(ReadRange(ZERO, "0", "4"))
        log.append("0", [b"more"])
        assert values_of(list(reading)) == WHOLE + LAST


class TestDamage:
    def test_a_flipped_bit_anywhere_in_the_messages(self, log: LocalLog) -> None:
        (name,) = segments(log)
        data = name.data.read_bytes()
        first = stored_entry(name.index.read_bytes(), 0)
        for at in range(first.position, len(data)):
            name.data.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            with pytest.raises(LogCorrupt, match=r"0{20}\.arrow is damaged in the") as raised:
                read_all(log)
            assert "\n" not in str(raised.value)
            if at >= first.position_end:
                with pytest.raises(LogCorrupt):
                    log.append("0", [b"on top"])
                assert values_of(list(log.read(ReadRange(ZERO, "0", "2")))) == WHOLE

    def test_a_flipped_bit_anywhere_in_the_index(self, log: LocalLog) -> None:
        (name,) = segments(log)
        index = name.index.read_bytes()
        for at in range(len(index)):
            name.index.write_bytes(index[:at] + bytes([index[at] ^ 4]) + index[at + 1 :])
            with pytest.raises(LogCorrupt, match=r"0{20}\.index is damaged in the"):
                read_all(log)

    def test_a_missing_index(self, log: LocalLog) -> None:
        (name,) = segments(log)
        name.index.unlink()
        with pytest.raises(LogCorrupt, match="is missing"):
            read_all(log)
        with pytest.raises(LogCorrupt, match="is missing"):
            log.append("0", [b"on top"])

    def test_a_segment_in_the_middle(self, tmp_path: Path) -> None:
        """A short file or a missing one is damage, unless it is the last."""
        log = LocalLog.create(tmp_path / "log", 1, clock=lambda: NOW, segment_bytes_max=1)
        for value in WHOLE + LAST:
            log.append("0", [value])
        middle = segments(log)[1]
        data = middle.data.read_bytes()
        middle.data.write_bytes(data[:-1])
        with pytest.raises(LogCorrupt, match="is damaged in the"):
            read_all(log)
        with pytest.raises(LogCorrupt, match="ends before its last record"):
            log.append("0", [b"on top"])
        middle.data.unlink()
        for attempt in (
            lambda: read_all(log),
            lambda: log.plan(ZERO, "1", Limits()),
            lambda: list(log.read(ReadRange(ZERO, "1", "2"))),
        ):
            with pytest.raises(LogCorrupt, match="do not hold offset 1"):
                attempt()
        assert values_of(list(log.read(ReadRange(ZERO, "2", "4")))) == LAST


class TestDisk:
    @pytest.mark.parametrize("durable", [True, False])
    def test_an_append_is_on_the_disk_bytes_first(
        self, log: LocalLog, monkeypatch: pytest.MonkeyPatch, durable: bool
    ) -> None:
        """Entries over bytes that a power failure takes away would be damage."""
        steps: list[tuple[str, str]] = []
        real = os.write

        def name(descriptor: int) -> str:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            return path.suffix or path.name

        def write(descriptor: int, content: bytes) -> int:
            steps.append(("write", name(descriptor)))
            return real(descriptor, content)

        def place(descriptor: int, content: bytes, _: int) -> int:
            return write(descriptor, content)

        def flush(descriptor: int) -> None:
            steps.append(("flush", name(descriptor)))

        with log.writer("0", durable=durable) as writer, monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            patch.setattr(os, "pwrite", place)
            patch.setattr(os, "fsync", flush)
            patch.setattr(os, "fdatasync", flush)
            writer.append([b"more"])
        whole = [(do, to) for to in (".arrow", ".index", "heads") for do in ("write", "flush")]
        assert steps == [step for step in whole if durable or step[0] == "write"]

    def test_a_folder_that_takes_no_writes(self, log: LocalLog) -> None:
        # A lock file that is a folder refuses every user, the superuser included.
        lock = shard_folder(log.root, ZERO) / "write.lock"
        lock.unlink(missing_ok=True)
        lock.mkdir()
        with pytest.raises(SourceUnavailable, match="cannot be written"):
            log.append("0", [b""])

    def test_a_writer_stops_at_the_first_failure(
        self, log: LocalLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that is full for a moment leaves no entry over bytes that are not there."""
        calls = iter([5, OSError(28, "No space left on device")])

        def write(descriptor: int, content: bytes) -> int:
            step = next(calls)
            if isinstance(step, OSError):
                raise step
            return real(descriptor, bytes(content[:step]))

        with log.writer("0") as writer:
            real = os.write
            monkeypatch.setattr(os, "write", write)
            with pytest.raises(SourceUnavailable, match="No space left on device"):
                writer.append([b"lost"])
            monkeypatch.undo()
            with pytest.raises(SourceUnavailable, match="open it again"):
                writer.append([b"refused"])
        check_repaired(log, WHOLE + LAST)
