from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_leasehold.lease_store.errors import RecordRefused, UserMistake
from dagster_leasehold.shard_sources.local_log.lines import check_readable
from tests.unit.shard_sources.local_logs import new_log, read_all


class TestLines:
    def test_a_line_keeps_everything_but_its_line_feed(self, tmp_path: Path) -> None:
        file = tmp_path / "a.log"
        file.write_bytes(b"one\r\n\n\rtwo\r\r\n\xff\x00\nlast")
        log = new_log(tmp_path / "log", shards=1)
        seen: list[int] = []
        assert log.append_lines(file, progress=seen.append) == {"0": ("0", "5")}
        assert read_all(log) == [b"one\r", b"", b"\rtwo\r\r", b"\xff\x00", b"last"]
        assert seen[-1] == 5

    @settings(max_examples=40)
    @given(
        content=st.binary(max_size=400).map(lambda b: b.replace(b"\x01", b"\n")),
        shards=st.integers(1, 5),
        block=st.integers(1, 50),
    )
    def test_all_lines_arrive_in_order(
        self, tmp_path_factory: pytest.TempPathFactory, content: bytes, shards: int, block: int
    ) -> None:
        from dagster_leasehold.shard_sources.local_log import lines

        folder = tmp_path_factory.mktemp("load")
        file = folder / "input"
        file.write_bytes(content)
        log = new_log(folder / "log", shards=shards)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lines, "_READ_BYTES", block)
            log.append_lines(file)
        expected = content.split(b"\n")
        if expected[-1] == b"":
            expected.pop()
        loaded = [read_all(log, str(n)) for n in range(shards)]
        assert sorted(chain.from_iterable(loaded)) == sorted(expected)
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

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        for path in (tmp_path / "missing", tmp_path):
            with pytest.raises(UserMistake, match=f"{path} cannot be read"):
                check_readable([path])

    def test_lines_are_loaded_into_more_shards_than_open_files(self, tmp_path: Path) -> None:
        """Each shard needs four open files while it is written."""
        import os
        import resource

        file = tmp_path / "a.log"
        file.write_bytes(b"".join(b"%d\n" % n for n in range(400)))
        log = new_log(tmp_path / "log", shards=200)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = len(os.listdir("/proc/self/fd")) + 380
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, limit), hard))
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

    def test_a_line_that_is_too_long_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from dagster_leasehold.shard_sources.local_log import lines

        monkeypatch.setattr(lines, "RECORD_BYTES_MAX", 10)
        monkeypatch.setattr(lines, "_READ_BYTES", 4)
        file = tmp_path / "a.log"
        for ending in (b"\nafter\n", b""):
            log = new_log(tmp_path / f"log{len(ending)}", shards=1)
            file.write_bytes(b"one\ntwo\n" + b"x" * 11 + ending)
            with pytest.raises(RecordRefused, match=r"Line 3 of .* the 2 lines before it"):
                log.append_lines(file)
            assert read_all(log) == [b"one", b"two"]
