"""The rows that tasks of the Arrow way send back: one for each part of a range, as JSON.

A row tells what was read and written, or the error that keeps its shard from continuing. The parts
of a range become the outcome of its shard only if together they are the range, without holes and
overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.errors import BatchIncomplete
from dagster_leasehold.assets.output.worker_results import (
    Plain,
    RangeStatistics,
    WrittenFile,
    error_of,
    plain_error,
)
from dagster_leasehold.shard_sources.source import ReadRange


@dataclass(frozen=True, slots=True)
class RangeRow:
    """The results of one part of a range.

    Attributes:
        part: the part that was given to the task.
        read: the statistics of its records.
        files: the files that hold them, durable in content and name.
        first: the cursor of the first record; empty where there was none.
        last: the cursor of the last record; empty where there was none.
        error: why the part was not made, as `plain_error` has it; None where all went well.
    """

    part: ReadRange
    read: RangeStatistics = field(default_factory=RangeStatistics)
    files: tuple[WrittenFile, ...] = ()
    first: str = ""
    last: str = ""
    error: Plain | None = None

    @classmethod
    def failed(cls, part: ReadRange, error: BaseException) -> Self:
        """Return the row of a part that was not made."""
        return cls(part, error=plain_error(error))

    def text(self) -> str:
        """Return the row as JSON."""
        part = self.part
        values: dict[str, Any] = {
            "part": [part.shard, part.start, part.end, part.records],
            "read": self.read.plain(),
            "files": [file.plain() for file in self.files],
            "seen": [self.first, self.last],
            "error": self.error,
        }
        return json.dumps(values)

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the row that `text` was made of."""
        values = json.loads(text)
        first, last = values["seen"]
        return cls(
            ReadRange(*values["part"]),
            RangeStatistics.of(values["read"]),
            tuple(WrittenFile.of(file) for file in values["files"]),
            first,
            last,
            values["error"],
        )


def outcome_of(
    range_: ReadRange, parts: Sequence[ReadRange], rows: Sequence[RangeRow], attempt: str
) -> SweepResult:
    """Return the outcome of a shard's range from the rows of its parts, or its error.

    Args:
        range_: the range.
        parts: of the range, in order.
        rows: the rows that came back for them, in any order.
        attempt: the attempt's folder, relative to the output.
    """
    by_part = {row.part: row for row in rows}
    for part in parts:
        if part in by_part and (error := by_part[part].error) is not None:
            return error_of(error)
    if why := _broken(range_, parts, by_part):
        return BatchIncomplete(
            f"The batch of shard {range_.shard} from cursor {range_.start} to {range_.end} was not "
            f"read as a whole: {why}. Nothing of it was committed; the next run reads it again."
        )
    ordered = [by_part[part] for part in parts]
    read = RangeStatistics()
    for row in ordered:
        read = read.plus(row.read)
    files = [file for row in ordered for file in row.files]
    files.sort(key=lambda file: file.quarantine)
    return SweepOutcome.of(attempt, read, files)


def _broken(
    range_: ReadRange, parts: Sequence[ReadRange], by_part: dict[ReadRange, RangeRow]
) -> str:
    """Return why parts are not the range, as half a sentence; empty where they are."""
    reached = range_.start
    for part in parts:
        if part.start != reached:
            return f"its parts leave {reached} and continue at {part.start}"
        row = by_part.get(part)
        if row is None:
            return f"Spark returned nothing for the part from {part.start} to {part.end}"
        if len(parts) > 1 and row.first and not _within(part, row):
            return (
                f"the part from {part.start} to {part.end} holds records from {row.first} to "
                f"{row.last}"
            )
        reached = part.end
    return "" if reached == range_.end else f"its parts end at {reached}"


def _within(part: ReadRange, row: RangeRow) -> bool:
    """Return True if all that was read lies within the part; cut ranges count their records."""
    first, last = int(row.first), int(row.last)
    room = last - first + 1
    return int(part.start) <= first <= last < int(part.end) and row.read.records <= room
