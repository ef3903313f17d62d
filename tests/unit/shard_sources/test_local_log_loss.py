"""Acknowledged records are read, or their loss is an error; a reader never gets fewer records."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import LogCorrupt, LogNotFound
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog, Record
from dagster_leasehold.shard_sources.local_log.heads import HEADS_FILE, RECORD_BYTES
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.sources.world import values_of
from tests.unit.shard_sources.local_logs import NOW, ZERO, data_files, file_names, new_log

ONE = ShardId("1")
Expected = dict[ShardId, tuple[int, list[bytes]]]


def record(shard: ShardId, number: int) -> Record:
    value = b"%s:%d" % (shard.encode(), number)
    return Record(value, event_time=NOW + timedelta(seconds=number))


def filled(root: Path, appends: int = 5) -> tuple[LocalLog, Expected]:
    """Two shards of several files; the beginning of shard 1 was removed by retention."""
    log = new_log(root)
    for shard in (ZERO, ONE):
        for number in range(0, 3 * appends, 3):
            log.append(shard, [record(shard, each) for each in range(number, number + 3)])
    begin = int(log.retain(ONE, "7"))
    assert begin == 6
    values = {shard: [record(shard, n).value for n in range(3 * appends)] for shard in (ZERO, ONE)}
    return log, {ZERO: (0, values[ZERO]), ONE: (begin, values[ONE][begin:])}


def read(log: LocalLog, shard: ShardId) -> tuple[int, list[bytes]]:
    """Return the beginning of a shard, and all records that a consumer gets."""
    bounds = log.bounds([shard])[shard]
    cursor, batches = bounds.begin, []
    while int(cursor) < int(bounds.end):
        end = log.plan(shard, cursor, Limits(records_max=4)).end
        batches += list(log.read(ReadRange(shard, cursor, end)))
        cursor = end
    return int(bounds.begin), values_of(batches)


def outcome(action: Callable[[], object]) -> object:
    """Return an action's result, or the type of the error for damage; other errors are defects."""
    try:
        return action()
    except LogCorrupt:
        return LogCorrupt


def check_nothing_is_lost_in_silence(log: LocalLog, expected: Expected) -> int:
    """Read, seek by time, append, and read again; return the number of refusals."""
    refused = 0
    for shard, (begin, values) in expected.items():
        end = begin + len(values)
        before = outcome(lambda shard=shard: read(log, shard))
        assert before in ((begin, values), LogCorrupt)
        at = NOW + timedelta(seconds=end - 1)
        assert outcome(lambda at=at, shard=shard: log.cursor_at(shard, at)) in (
            str(end - 1),
            LogCorrupt,
        )
        after = NOW + timedelta(days=1)
        cursor = outcome(lambda at=after, shard=shard: log.cursor_at(shard, at))
        assert cursor in (str(end), LogCorrupt)
        appended = outcome(lambda shard=shard: log.append(shard, [b"new"]))
        assert appended in ((str(end), str(end + 1)), LogCorrupt)
        whole = values if appended is LogCorrupt else [*values, b"new"]
        again = outcome(lambda shard=shard: read(log, shard))
        assert again in ((begin, whole), LogCorrupt)
        refused += [before, appended].count(LogCorrupt)
    return refused


def damage(rng: random.Random, file: Path) -> str:
    """Cut, zero, flip or remove at a random place."""
    content = file.read_bytes()
    kinds = ["cut", "zero", "flip", "remove", "empty"] if content else ["remove"]
    kind = rng.choice(kinds)
    at = rng.randrange(len(content)) if content else 0
    match kind:
        case "cut":
            file.write_bytes(content[:at])
        case "empty":
            file.write_bytes(b"")
        case "zero":
            length = rng.randrange(1, len(content) - at + 1)
            file.write_bytes(content[:at] + bytes(length) + content[at + length :])
        case "flip":
            flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
            file.write_bytes(content[:at] + flipped + content[at + 1 :])
        case _:
            file.unlink()
    return f"{kind} {file.name} at {at}"


@pytest.mark.parametrize("suffix", [".arrow", "heads", "catalog.json", ".lock"])
def test_damage_at_a_random_place_of_any_file_is_never_silent(tmp_path: Path, suffix: str) -> None:
    whole, expected = filled(tmp_path / "whole")
    refused = 0
    for seed in range(40):
        rng = random.Random(seed)
        log = LocalLog(tmp_path / str(seed))
        shutil.copytree(whole.root, log.root)
        files = sorted(file for file in log.root.rglob("*") if file.name.endswith(suffix))
        done = damage(rng, rng.choice(files))
        try:
            refused += check_nothing_is_lost_in_silence(log, expected)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {done}") from error
    assert (refused > 0) is (suffix != ".lock"), "the damage was seen at all"


def test_a_truncated_emptied_or_removed_last_file_is_detected(tmp_path: Path) -> None:
    """Every way to lose the end of a shard, including its folder."""

    def zero(file: Path) -> None:
        file.write_bytes(bytes(file.stat().st_size))

    def cut(file: Path, length: int) -> None:
        file.write_bytes(file.read_bytes()[:-length])

    whole, expected = filled(tmp_path / "whole")
    ways: dict[str, Callable[[Path], object]] = {
        "cut by a byte": lambda file: cut(file, 1),
        "cut by its footer": lambda file: cut(file, 60),
        "cut by half": lambda file: cut(file, file.stat().st_size // 2),
        "emptied": lambda file: file.write_bytes(b""),
        "zeroed": zero,
        "removed": lambda file: file.unlink(),
        "named after other offsets": lambda file: file.rename(
            file.with_name(f"{12:020d}-{16:020d}.arrow")
        ),
        "folder emptied": lambda file: [each.unlink() for each in file.parent.iterdir()],
        "folder removed": lambda file: shutil.rmtree(file.parent),
    }
    for way, lose in ways.items():
        log = LocalLog(tmp_path / way)
        shutil.copytree(whole.root, log.root)
        lose(data_files(log)[-1])
        assert outcome(lambda log=log: read(log, ZERO)) is LogCorrupt, way
        assert outcome(lambda log=log: log.append(ZERO, [b"new"])) is LogCorrupt, way
        file = tmp_path / "lines"
        file.write_bytes(b"a\nb\n")
        assert outcome(lambda log=log, file=file: log.append_lines(file)) is LogCorrupt, way
        assert read(log, ONE) == expected[ONE], "the other shard continues"


def test_records_before_the_damage_are_read(tmp_path: Path) -> None:
    log = new_log(tmp_path / "log")
    log.append(ZERO, [b"first"])
    log.append(ZERO, [b"second"])
    _, last = data_files(log)
    last.write_bytes(last.read_bytes()[:-1])
    plan = log.plan(ZERO, "0", Limits(records_max=1))
    assert values_of(list(log.read(ReadRange(ZERO, "0", plan.end)))) == [b"first"]
    with pytest.raises(LogCorrupt, match="damaged at its end"):
        list(log.read(ReadRange(ZERO, "1", "2")))


def test_a_log_without_its_catalog_is_not_a_missing_log(tmp_path: Path) -> None:
    log, _ = filled(tmp_path / "log")
    (log.root / "catalog.json").unlink()
    with pytest.raises(LogCorrupt, match="is missing"):
        log.list_shards()
    with pytest.raises(LogCorrupt, match="is missing"):
        LocalLog.create(log.root, 2)
    shutil.rmtree(log.root / "shards")
    with pytest.raises(LogNotFound):
        log.list_shards()


def test_a_damaged_head_stops_its_shard_alone(tmp_path: Path) -> None:
    log, expected = filled(tmp_path / "log")
    heads = log.root / HEADS_FILE
    content = heads.read_bytes()
    heads.write_bytes(bytes(RECORD_BYTES) + content[RECORD_BYTES:])
    with pytest.raises(LogCorrupt, match="the head of shard 0"):
        log.bounds([ZERO])
    with pytest.raises(LogCorrupt, match="the head of shard 0"):
        log.append(ZERO, [b"new"])
    assert read(log, ONE) == expected[ONE]


def test_retention_that_was_killed_before_its_first_removal_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning moves first, and the next retention removes the remaining files."""
    log, expected = filled(tmp_path / "log")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            log.retain(ZERO, "7")
    assert read(log, ZERO) == (6, expected[ZERO][1][6:])
    assert log.append(ZERO, [b"new"]) == ("15", "16")
    assert log.retain(ZERO, "13") == "12"
    assert [name.begin for name in file_names(log)] == [12, 15]
    assert read(log, ZERO) == (12, [*expected[ZERO][1][12:], b"new"])
