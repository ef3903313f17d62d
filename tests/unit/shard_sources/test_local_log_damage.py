"""Torn ends are repaired and never read; damage is an error and never skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import LogCorrupt, SourceUnavailable
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.local_log.files import FileName, LogFile, shard_folder
from dagster_leasehold.shard_sources.local_log.format import file_header
from dagster_leasehold.shard_sources.local_log.heads import HEADS_FILE
from dagster_leasehold.shard_sources.local_log.writing import SMALL_FILES_MAX
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.sources.world import values_of
from tests.unit.shard_sources.local_logs import NOW, ZERO, data_files, file_names, read_all

WHOLE = [b"first", b"second"]
LAST = [b"third", b"fourth"]


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    """Two appends, each in a separate file."""
    log = LocalLog.create(tmp_path / "log", 1, clock=lambda: NOW)
    log.append("0", WHOLE)
    log.append("0", LAST)
    return log


def heads_of_first_append(log: LocalLog) -> bytes:
    """Return the heads file after the first append."""
    heads = log.root / HEADS_FILE
    record = heads.read_bytes()
    older = LocalLog.create(log.root.parent / "older", 1, clock=lambda: NOW)
    older.append("0", WHOLE)
    content = (older.root / HEADS_FILE).read_bytes()
    shutil.rmtree(older.root)
    assert content != record
    return content


def end_mark(content: bytes) -> range:
    """Return the place of Arrow's end mark in a file of one message, with a footer of 60 bytes."""
    return range(len(content) - 68, len(content) - 60)


def check_repaired(log: LocalLog, records: list[bytes]) -> None:
    """The records are the same before, by and after the repair."""
    assert read_all(log) == records
    assert log.append("0", [b"next"]).begin == str(len(records))
    assert read_all(log) == [*records, b"next"]


class TestTornTails:
    def test_a_file_above_the_head_is_removed_at_every_length(self, log: LocalLog) -> None:
        """A disk that kept its name and lost its bytes in a power failure."""
        _, last = data_files(log)
        heads = heads_of_first_append(log)
        content = last.read_bytes()
        for length in range(len(content)):
            last.write_bytes(content[:length])
            (log.root / HEADS_FILE).write_bytes(heads)
            check_repaired(log, WHOLE)

    def test_a_head_torn_at_any_byte_is_detected(self, log: LocalLog) -> None:
        """Killed while it wrote the head: the records are complete, and can count."""
        before, after = heads_of_first_append(log), (log.root / HEADS_FILE).read_bytes()
        files = data_files(log)
        changed = [at for at in range(len(after)) if before[at] != after[at]]
        for length in (*changed, len(after)):
            for more in set(data_files(log)) - set(files):
                more.unlink()
            (log.root / HEADS_FILE).write_bytes(after[:length] + before[length:])
            if length == changed[0]:
                assert read_all(log) == WHOLE, "nobody looks beyond a head that is whole"
                assert log.append("0", []) == ("4", "4"), "the next writer takes them over"
            check_repaired(log, WHOLE + LAST)

    def test_a_head_torn_before_a_compaction_is_detected(self, log: LocalLog) -> None:
        """The older slot ends in the middle of the larger file."""
        with log.writer("0") as writer:
            for number in range(4, SMALL_FILES_MAX + 2):
                writer.append([b"%d" % number])
        assert len(file_names(log)) == 1
        records = read_all(log)
        heads = bytearray((log.root / HEADS_FILE).read_bytes())
        newest = len(records) % 2 * 32
        heads[newest] ^= 1
        (log.root / HEADS_FILE).write_bytes(heads)
        check_repaired(log, records)

    def test_a_draft_is_removed_by_the_next_writer(self, log: LocalLog) -> None:
        """Killed while it wrote the file."""
        draft = shard_folder(log.root, ZERO) / ".00-02.arrow.1234.draft"
        draft.write_bytes(b"ARROW")
        check_repaired(log, WHOLE + LAST)
        assert not draft.exists()

    def test_small_files_beside_their_compacted_file_are_ignored(self, log: LocalLog) -> None:
        """Killed before it removed them."""
        small = {file: file.read_bytes() for file in data_files(log)}
        with log.writer("0") as writer:
            for number in range(4, SMALL_FILES_MAX + 2):
                writer.append([b"%d" % number])
        (larger,) = data_files(log)
        for file, content in small.items():
            file.write_bytes(content)
        assert data_files(log) == [larger]
        check_repaired(log, read_all(log))
        assert not any(file.exists() for file in small)

    def test_an_open_reader_does_not_read_later_appends(self, log: LocalLog) -> None:
        reading = log.read(ReadRange(ZERO, "0", "4"))
        log.append("0", [b"more"])
        assert values_of(list(reading)) == WHOLE + LAST


class TestDamage:
    def test_a_flipped_bit_anywhere_in_a_file_is_detected(self, log: LocalLog) -> None:
        for file in (whole := data_files(log)):
            content = file.read_bytes()
            for at in range(len(file_header()), len(content)):
                if at in end_mark(content):
                    continue  # not read here
                file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
                with pytest.raises(LogCorrupt, match=f"{file.name} is damaged") as raised:
                    read_all(log)
                assert "\n" not in str(raised.value)
                if file == whole[-1]:
                    with pytest.raises(LogCorrupt):
                        log.append("0", [b"on top"])
                    assert values_of(list(log.read(ReadRange(ZERO, "0", "2")))) == WHOLE
            file.write_bytes(content)

    def test_a_missing_file_in_the_middle_is_detected(self, tmp_path: Path) -> None:
        """A short file or a missing one is damage, unless retention removed it."""
        log = LocalLog.create(tmp_path / "log", 1, clock=lambda: NOW)
        for value in WHOLE + LAST:
            log.append("0", [value])
        middle = data_files(log)[1]
        middle.write_bytes(middle.read_bytes()[:-1])
        with pytest.raises(LogCorrupt, match="is damaged at its end"):
            read_all(log)
        middle.unlink()
        for attempt in (
            lambda: read_all(log),
            lambda: log.plan(ZERO, "1", Limits()),
            lambda: list(log.read(ReadRange(ZERO, "1", "2"))),
            lambda: log.append("0", [b"on top"]),
            lambda: log.cursor_at(ZERO, NOW),
            lambda: log.retain("0", "3"),
        ):
            with pytest.raises(LogCorrupt, match="do not hold offset 1"):
                attempt()
        assert values_of(list(log.read(ReadRange(ZERO, "2", "4")))) == LAST

    def test_a_compaction_does_not_hide_damage(self, log: LocalLog) -> None:
        first, _ = data_files(log)
        content = bytearray(first.read_bytes())
        content[len(file_header()) + 200] ^= 1
        first.write_bytes(content)
        with log.writer("0") as writer:
            for number in range(SMALL_FILES_MAX):
                writer.append([b"%d" % number])
        with pytest.raises(LogCorrupt, match="offsets 0 to 1"):
            read_all(log)
        assert values_of(list(log.read(ReadRange(ZERO, "2", "4")))) == LAST


class TestDisk:
    def test_an_append_is_on_the_disk_before_its_head(
        self, log: LocalLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a power failure removed the file below a durable head, that would be damage."""
        steps: list[str] = []
        real_place, real_replace = os.pwrite, Path.replace

        def flush(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            steps.append(f"flush {path.suffix or path.name}")

        def rename(draft: Path, path: Path) -> Path:
            steps.append(f"name {path.suffix}")
            return real_replace(draft, path)

        def place(descriptor: int, content: bytes, at: int) -> int:
            steps.append("write head")
            return real_place(descriptor, content, at)

        with log.writer("0") as writer, monkeypatch.context() as patch:
            patch.setattr(Path, "replace", rename)
            patch.setattr(os, "pwrite", place)
            patch.setattr(os, "fsync", flush)
            patch.setattr(os, "fdatasync", flush)
            writer.append([b"more"])
        assert steps == ["flush .draft", "name .arrow", "flush 0", "write head", "flush heads"]

    def test_a_read_only_folder_can_be_read(self, log: LocalLog) -> None:
        # A lock file that is a folder refuses every user, the superuser included.
        lock = shard_folder(log.root, ZERO) / "write.lock"
        lock.unlink(missing_ok=True)
        lock.mkdir()
        with pytest.raises(SourceUnavailable, match="cannot be written"):
            log.append("0", [b""])

    @pytest.mark.parametrize("call", ["fsync", "pwrite", "fdatasync"])
    def test_a_writer_stops_at_the_first_failure(
        self, log: LocalLog, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """A disk that is full for a moment: the next writer continues after complete records."""

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with log.writer("0") as writer:
            monkeypatch.setattr(os, call, full)
            with pytest.raises(SourceUnavailable, match="No space left on device"):
                writer.append([b"lost"])
            monkeypatch.undo()
            with pytest.raises(SourceUnavailable, match="open another one"):
                writer.append([b"refused"])
        rest = [] if call == "fsync" else [b"lost"]
        assert log.append("0", []).end == str(4 + len(rest))
        check_repaired(log, WHOLE + LAST + rest)

    def test_files_that_cannot_be_compacted_stay(
        self, log: LocalLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> FileName:
            raise OSError(28, "No space left on device")

        with log.writer("0") as writer:
            for number in range(4, SMALL_FILES_MAX + 1):
                writer.append([b"%d" % number])
            with monkeypatch.context() as patch:
                patch.setattr(LogFile, "message", full)
                writer.append([b"last"])
            check = [*WHOLE, *LAST, *(b"%d" % n for n in range(4, SMALL_FILES_MAX + 1)), b"last"]
            assert len(data_files(log)) == SMALL_FILES_MAX
        check_repaired(log, check)
