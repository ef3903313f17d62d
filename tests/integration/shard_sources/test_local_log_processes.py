"""The local log between processes: killed writers, readers beside writers, two writers at once."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import LogCorrupt
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits, ReadRange

pytestmark = pytest.mark.long

ZERO = ShardId("0")
DEADLINE_S = 60.0

# Appends numbered records in groups of growing size, and prints acknowledged ones.
WRITER = """
    import sys
    from dagster_leasehold.shard_sources.local_log import LocalLog
    log = LocalLog(sys.argv[1])
    with log.writer("0", wait_s=20) as writer:
        print("open", flush=True)
        while True:
            start = int(writer.end)
            size = 1 + start % 97
            numbers = range(start, start + size)
            end = writer.append(b"%d %s" % (n, b"x" * (n % 50)) for n in numbers).end
            print(end, flush=True)
"""


@contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def expected(start: int, end: int) -> list[bytes]:
    return [b"%d %s" % (n, b"x" * (n % 50)) for n in range(start, end)]


def read(log: LocalLog, start: int, end: int) -> list[bytes]:
    batches = log.read(ReadRange(ZERO, str(start), str(end)))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def end_of(log: LocalLog) -> int:
    return int(log.bounds([ZERO])[ZERO].end)


def test_a_killed_writer_loses_no_acknowledged_record(tmp_path: Path) -> None:
    """kill -9 at a random moment, twelve times; each next writer keeps complete records."""
    log = LocalLog.create(tmp_path / "log", 1)
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    for round_ in range(12):
        with process(WRITER, log.root) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            for _ in range(moments.randrange(1, 60)):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            rest, trouble = child.communicate(timeout=DEADLINE_S)
        assert not trouble
        acknowledged = re.findall(r"\d+(?=\n)", rest)
        end = end_of(log)
        assert read(log, 0, end) == expected(0, end), f"round {round_} of seed {seed}"
        if acknowledged:
            assert end >= int(acknowledged[-1]), f"round {round_} of seed {seed}"
        with log.writer("0") as writer:
            # It keeps complete records on the disk if the kill came before the head.
            assert int(writer.end) >= end
            end = int(writer.end)
            assert writer.append(expected(end, end + 1)) == (str(end), str(end + 1))


def test_readers_beside_a_writer_see_only_whole_records(tmp_path: Path) -> None:
    """While one process appends and compacts files, no read of existing records fails."""
    log = LocalLog.create(tmp_path / "log", 1)
    with process(WRITER, log.root):
        seen, looks = 0, 0
        stop = time.monotonic() + DEADLINE_S
        while seen < 20_000 and time.monotonic() < stop:
            plan = log.plan(ZERO, str(seen), Limits(records_max=777))
            assert read(log, seen, int(plan.end)) == expected(seen, int(plan.end))
            seen, looks = int(plan.end), looks + 1
    assert seen >= 20_000
    assert looks > 20


def test_retention_during_a_read_is_not_reported_as_damage(tmp_path: Path) -> None:
    """A reader that retention overtakes gets the error for removed records, never wrong records."""
    from dagster_leasehold.lease_store.errors import CursorExpired

    log = LocalLog.create(tmp_path / "log", 1)
    expired = 0
    with process(WRITER, log.root):
        stop = time.monotonic() + DEADLINE_S
        while expired < 20 and time.monotonic() < stop:
            bounds = log.bounds([ZERO])[ZERO]
            begin, end = int(bounds.begin), int(bounds.end)
            log.retain("0", str((begin + end) // 2))
            try:
                assert read(log, begin, end) == expected(begin, end)
            except CursorExpired:
                expired += 1
            except LogCorrupt as error:
                pytest.fail(f"removed records were taken for damage: {error}")
    assert expired == 20


def test_a_second_writer_in_another_process_is_refused(tmp_path: Path) -> None:
    second = """
        import sys
        from dagster_leasehold.lease_store.errors import ShardBusy
        from dagster_leasehold.shard_sources.local_log import LocalLog
        try:
            LocalLog(sys.argv[1]).append("0", [b"second"])
        except ShardBusy as refused:
            print(refused)
    """
    log = LocalLog.create(tmp_path / "log", 1)
    with log.writer("0") as writer:
        writer.append([b"first"])
        with process(second, log.root) as child:
            answer, trouble = child.communicate(timeout=DEADLINE_S)
    assert trouble == ""
    assert answer == (
        f"Shard 0 of {log.root} is being written to by another process: "
        "try again when it has finished.\n"
    )
    assert read(log, 0, end_of(log)) == [b"first"]


def test_a_split_waits_for_the_writer_and_then_refuses_it(tmp_path: Path) -> None:
    """Two processes race to split while two append: one split wins, no record is lost or late."""
    splitter = """
        import sys
        from dagster_leasehold.lease_store.errors import LeaseholdError
        from dagster_leasehold.shard_sources.local_log import LocalLog
        try:
            print(*LocalLog(sys.argv[1]).split("0"))
        except LeaseholdError as refused:
            print(type(refused).__name__)
    """
    appender = """
        import sys
        from dagster_leasehold.lease_store.errors import ShardReadOnly
        from dagster_leasehold.shard_sources.local_log import LocalLog
        log, count = LocalLog(sys.argv[1]), 0
        try:
            while True:
                with log.writer("0", wait_s=20) as writer:
                    writer.append([b"r"])
                    count += 1
        except ShardReadOnly:
            print(count)
    """
    log = LocalLog.create(tmp_path / "log", 1)
    with process(appender, log.root) as one, process(appender, log.root) as two:
        stop = time.monotonic() + DEADLINE_S
        while end_of(log) < 20 and time.monotonic() < stop:
            pass
        with process(splitter, log.root) as three, process(splitter, log.root) as four:
            outcomes = sorted(p.communicate(timeout=DEADLINE_S)[0] for p in (three, four))
        counts = [int(p.communicate(timeout=DEADLINE_S)[0]) for p in (one, two)]
    assert outcomes == ["1 2\n", "ShardReadOnly\n"]
    assert end_of(log) == sum(counts) >= 20
    assert log.bounds([ZERO])[ZERO].finished


def test_a_killed_split_is_complete_or_absent(tmp_path: Path) -> None:
    """kill -9 during continuous splits and merges. The hash ranges never have a hole."""
    resharder = """
        import sys
        from dagster_leasehold.shard_sources.local_log import LocalLog
        log = LocalLog(sys.argv[1])
        print("open", flush=True)
        while True:
            writable = [entry for entry in log.list_shards() if not entry.read_only]
            low, high = log.split(writable[len(writable) // 2].shard)
            log.append(low, [b"a"])
            log.append(high, [b"b"])
            if len(writable) > 6:
                log.merge(low, high)
            print("+", flush=True)
    """
    log = LocalLog.create(tmp_path / "log", 2)
    seed = random.randrange(2**32)
    moments = random.Random(seed)
    for round_ in range(6):
        with process(resharder, log.root) as child:
            assert child.stdout is not None
            for _ in range(moments.randrange(2, 12)):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            child.wait(timeout=DEADLINE_S)
        listed = log.list_shards()
        writable = sorted(
            (entry for entry in listed if not entry.read_only), key=lambda entry: entry.hash_begin
        )
        where = f"round {round_} of seed {seed}"
        assert writable[0].hash_begin == "0" * 32, where
        assert writable[-1].hash_end == "f" * 32, where
        assert all(a.hash_end == b.hash_begin for a, b in pairwise(writable)), where
        parents = {parent for entry in listed for parent in entry.parents}
        assert parents == {entry.shard for entry in listed if entry.read_only}, where
        assert all(bounds.end for bounds in log.bounds([e.shard for e in listed]).values())
    log.split(writable[0].shard)


def test_a_full_disk_leaves_whole_records(tmp_path: Path) -> None:
    """A limit of the file size simulates the full disk."""
    limited = """
        import resource, signal, sys
        from dagster_leasehold.lease_store.errors import SourceUnavailable
        from dagster_leasehold.shard_sources.local_log import LocalLog
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        log, end = LocalLog(sys.argv[1]), "0"
        try:
            while True:
                # Each is larger than the one before, and a file of its own.
                end = log.append("0", [b"%d %s" % (n, b"x" * (n % 50)) for n in
                                       range(int(end), 2 * int(end) + 10)]).end
        except SourceUnavailable as refused:
            print(end, refused)
    """
    log = LocalLog.create(tmp_path / "log", 1)
    with process(limited, log.root) as child:
        answer, trouble = child.communicate(timeout=DEADLINE_S)
    assert trouble == ""
    acknowledged, sentence = answer.split(" ", 1)
    assert "cannot be written: File too large." in sentence
    assert end_of(log) == int(acknowledged) > 0
    assert read(log, 0, end_of(log)) == expected(0, end_of(log))
    log.append("0", expected(end_of(log), end_of(log) + 5))
    assert read(log, 0, end_of(log)) == expected(0, end_of(log))


def test_large_files_are_loaded_in_bounded_memory(tmp_path: Path) -> None:
    """200 MB of lines, with 160 MB of address space beyond the imports."""
    loader = """
        import resource, sys
        from dagster_leasehold.shard_sources.local_log import LocalLog
        log = LocalLog.create(sys.argv[1], 4)
        log.append("0", [b"warm"] * 10)
        before = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = before + 160 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        log.append_lines(sys.argv[2])
    """
    file = tmp_path / "input"
    line = b"y" * 199 + b"\n"
    with file.open("wb") as stream:
        for _ in range(200):
            stream.write(line * 5_000)
    with process(loader, tmp_path / "log", file) as child:
        _, trouble = child.communicate(timeout=DEADLINE_S)
    assert trouble == ""
    log = LocalLog(tmp_path / "log")
    bounds = log.bounds([entry.shard for entry in log.list_shards()])
    assert sum(int(b.end) for b in bounds.values()) == 1_000_010
