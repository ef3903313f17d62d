"""Loading files into a log: one record per line, without its line feed.

A carriage return, an empty line, and a last line without a line feed are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from dagster_leasehold.lease_store.errors import LogCorrupt, RecordRefused, UserMistake
from dagster_leasehold.shard_sources.local_log.catalog import CatalogShard
from dagster_leasehold.shard_sources.local_log.format import RECORD_BYTES_MAX
from dagster_leasehold.shard_sources.local_log.writing import AppendedRange, ShardWriter

WRITERS_OPEN_MAX = 150
_READ_BYTES = 4 * 1024 * 1024


def append_lines(
    files: Sequence[Path],
    shards: Sequence[CatalogShard],
    open_writer: Callable[[CatalogShard], ShardWriter],
    progress: Callable[[int], None],
) -> dict[CatalogShard, AppendedRange]:
    """Append the lines of `files` to `shards`; see `LocalLog.append_lines`."""
    if not shards:
        raise LogCorrupt(
            "The log has no shard that accepts records: restore its catalog from a backup."
        )
    check_readable(files)
    ordered = sorted(shards, key=lambda shard: shard.hash_begin)
    divide = _by_turns(len(ordered))
    ranges: dict[CatalogShard, AppendedRange] = {}
    with ExitStack() as stack:
        # Each writer has two files open, and a process can open about a thousand.
        writers = {
            shard: stack.enter_context(open_writer(shard)) for shard in ordered[:WRITERS_OPEN_MAX]
        }
        count = 0
        for file in files:
            for lines in _lines(file, count):
                for shard, part in zip(ordered, divide(lines), strict=True):
                    if not part:
                        continue
                    if shard in writers:
                        new_range = writers[shard].append(part)
                    else:
                        with open_writer(shard) as writer:
                            new_range = writer.append(part)
                    begin = ranges.get(shard, new_range).begin
                    ranges[shard] = AppendedRange(begin, new_range.end)
                count += len(lines)
                progress(count)
    return ranges


def check_readable(files: Iterable[Path]) -> None:
    """Raise UserMistake if a file is missing, is a folder, or cannot be read."""
    for file in files:
        try:
            # A pipe can be opened only once.
            if not file.is_fifo():
                file.open("rb").close()
        except OSError as error:
            raise UserMistake(f"The file {file} cannot be read: {error.strerror}.") from None


def _lines(file: Path, loaded_before: int) -> Iterator[list[bytes]]:
    tail = b""
    count = 0
    try:
        with file.open("rb") as stream:
            while block := stream.read(_READ_BYTES):
                *lines, tail = (tail + block).split(b"\n")
                if lines and len(lines[0]) > RECORD_BYTES_MAX:
                    raise _too_long(file, count, loaded_before)
                if lines:
                    count += len(lines)
                    yield lines
                # Checked before the line ends, because the line can exceed the memory.
                if len(tail) > RECORD_BYTES_MAX:
                    raise _too_long(file, count, loaded_before)
    except OSError as error:
        raise UserMistake(f"The file {file} cannot be read: {error.strerror}.") from None
    if tail:
        yield [tail]


def _too_long(file: Path, lines_before: int, loaded_before: int) -> RecordRefused:
    return RecordRefused(
        f"Line {lines_before + 1} of {file} is longer than {RECORD_BYTES_MAX} bytes, the limit of "
        f"a record; the {loaded_before + lines_before} lines before it were loaded."
    )


def _by_turns(count: int) -> Callable[[list[bytes]], list[list[bytes]]]:
    """Return a function that deals lists of lines to shards round-robin."""
    first = 0

    def divide(lines: list[bytes]) -> list[list[bytes]]:
        nonlocal first
        parts = [lines[(shard - first) % count :: count] for shard in range(count)]
        first = (first + len(lines)) % count
        return parts

    return divide
