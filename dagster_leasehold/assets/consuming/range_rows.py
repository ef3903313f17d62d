"""The results of `range_tasks`: one row of JSON for each part of a range.

`range_job` combines the rows of each range into the outcome of its shard. The parts must cover the
range without holes or overlaps; otherwise the shard fails.
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
        part: the part that the task received.
        read: the statistics of its records.
        files: its files, with durable content and names.
        first: the cursor of the first record; empty if there was no record.
        last: the cursor of the last record; empty if there was no record.
        error: the error as `plain_error` encodes it; None on success.
    """

    part: ReadRange
    read: RangeStatistics = field(default_factory=RangeStatistics)
    files: tuple[WrittenFile, ...] = ()
    first: str = ""
    last: str = ""
    error: Plain | None = None

    @classmethod
    def failed(cls, part: ReadRange, error: BaseException) -> Self:
        """Return the row of a part that failed."""
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
        """Parse a row from its JSON."""
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
    """Combine the rows of a range's parts into the outcome of its shard, or its error.

    Args:
        range_: the range.
        parts: the parts of the range, in order.
        rows: the rows that the tasks returned, in any order.
        attempt: the attempt's folder, relative to the output.
    """
    by_part = {row.part: row for row in rows}
    for part in parts:
        if part in by_part and (error := by_part[part].error) is not None:
            return error_of(error)
    if mismatch := _mismatch(range_, parts, by_part):
        return BatchIncomplete(
            f"The batch of shard {range_.shard} from cursor {range_.start} to {range_.end} was not "
            f"read completely: {mismatch}. It was not committed; the next run reads it again."
        )
    ordered = [by_part[part] for part in parts]
    read = RangeStatistics()
    for row in ordered:
        read = read.plus(row.read)
    files = [file for row in ordered for file in row.files]
    files.sort(key=lambda file: file.quarantine)
    return SweepOutcome.of(attempt, read, files)


def _mismatch(
    range_: ReadRange, parts: Sequence[ReadRange], by_part: dict[ReadRange, RangeRow]
) -> str:
    """Return a clause on why the parts do not cover the range; empty if they do."""
    position = range_.start
    for part in parts:
        if part.start != position:
            return f"one part ends at {position} and the next starts at {part.start}"
        row = by_part.get(part)
        if row is None:
            return f"Spark returned nothing for the part from {part.start} to {part.end}"
        if len(parts) > 1 and row.first and not _within(part, row):
            return (
                f"the part from {part.start} to {part.end} holds records from {row.first} to "
                f"{row.last}"
            )
        position = part.end
    return "" if position == range_.end else f"its parts end at {position}"


def _within(part: ReadRange, row: RangeRow) -> bool:
    """Return True if the records are within the part; divided ranges have integer cursors."""
    first, last = int(row.first), int(row.last)
    records_max = last - first + 1
    return int(part.start) <= first <= last < int(part.end) and row.read.records <= records_max
