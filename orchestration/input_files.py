"""Files whose lines are records: a record is one line without its line feed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dagster_leasehold.lease_store.errors import RecordRefused, UserMistake

LINE_BYTES_MAX = 64 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024


def check_readable(files: Sequence[Path]) -> None:
    """Nothing is begun when one of the files cannot be read.

    Raises:
        UserMistake: a file is missing, is a folder, or may not be read.
    """
    for path in files:
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise UserMistake(f"The file {path} cannot be read: {error.strerror}.") from None


def count_lines(files: Sequence[Path]) -> int:
    """The number of records in files; a last line without a line feed is one."""
    total = 0
    for path in files:
        last = b"\n"
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                total += block.count(b"\n")
                last = block[-1:]
        total += last != b"\n"
    return total


def lines_of(files: Sequence[Path]) -> Iterator[bytes]:
    """All lines in order; a carriage return stays, and an empty line is a record.

    Raises:
        RecordRefused: a line is longer than a record may be.
    """
    for path in files:
        with path.open("rb") as stream:
            number = 0
            while line := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                    raise RecordRefused(
                        f"Line {number} of {path} has more than {LINE_BYTES_MAX} bytes, the most "
                        "that a record may have."
                    )
                yield line.removesuffix(b"\n")
