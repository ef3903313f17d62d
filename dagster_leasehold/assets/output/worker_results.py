"""Results of Spark's workers as JSON: statistics, written files, and errors.

A worker is a process of Spark, and can return neither objects nor exception types to the run. So it
sends plain values, from which the run recreates them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from dagster_leasehold.lease_store.errors import LeaseholdError, SourceError
from dagster_leasehold.lease_store.ledger_rows import DataFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Plain = dict[str, Any]
"""Values that JSON can hold."""
ROW_COLUMN = "row"
"""The column of the rows that tasks return."""
_ERRORS_MARK = "leasehold's errors: "
_TIMES = ("first_event_time", "last_event_time")


@dataclass(frozen=True)
class _JsonValue:
    """A value that is sent as JSON."""

    def plain(self) -> Plain:
        """Return the fields for JSON."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {name: time.isoformat() for name in _TIMES if (time := values[name])}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the value for the result of `plain`."""
        times = {name: datetime.fromisoformat(text) for name in _TIMES if (text := values[name])}
        lists = {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
        return cls(**{**values, **times, **lists})


@dataclass(frozen=True, slots=True)
class RangeStatistics(_JsonValue):
    """Statistics of one range that was read to its end.

    Attributes:
        records: the number of records.
        bytes: the size of their keys and values.
        first_event_time: the smallest event time, or None.
        last_event_time: the largest event time, or None.
        mistimed: the number of records with a time outside the years 1 to 9999 in the source.
        mistimed_at: the cursor of the first such record, or empty.
    """

    records: int = 0
    bytes: int = 0
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    mistimed: int = 0
    mistimed_at: str = ""

    def plus(self, other: RangeStatistics) -> RangeStatistics:
        """Add the statistics of another range."""
        return RangeStatistics(
            self.records + other.records,
            self.bytes + other.bytes,
            earliest(self.first_event_time, other.first_event_time),
            latest(self.last_event_time, other.last_event_time),
            self.mistimed + other.mistimed,
            self.mistimed_at or other.mistimed_at,
        )


@dataclass(frozen=True, slots=True)
class WrittenFile(_JsonValue):
    """A durable file that a worker wrote, and its shard.

    Attributes:
        first_event_time: the smallest event time of its records; None if unknown.
        last_event_time: the largest event time of its records; None if unknown.
        untimed: the number of records without an event time.
        columns: the columns as in `table.columns`; empty for a file in quarantine.
        mistimed: the number of records whose transform returned a time outside the years 1 to
            9999; they are untimed.
        mistimed_at: the cursor of the first such record, or empty.
        schemas: the schemas with which its records were decoded, for messages.
        partition: the values of its partition, by field; empty if its rows were not divided.
    """

    shard: str
    path: str
    records: int
    bytes: int
    quarantine: bool
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    untimed: int | None = None
    columns: tuple[Plain, ...] = ()
    mistimed: int = 0
    mistimed_at: str = ""
    schemas: tuple[str, ...] = ()
    partition: Plain = field(default_factory=dict[str, Any])

    def data_file(self, attempt: str) -> DataFile:
        """Return the file for the ledger, with its path below the output folder."""
        return DataFile(
            f"{attempt}/{self.path}",
            self.records,
            self.bytes,
            self.quarantine,
            first_event_time=self.first_event_time,
            last_event_time=self.last_event_time,
            untimed=None if self.quarantine else self.untimed,
            partition=tuple(self.partition.items()),
        )


def earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the smaller of two times; None is unknown."""
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def latest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the larger of two times; None is unknown."""
    times = [time for time in (one, other) if time is not None]
    return max(times, default=None)


def result_rows(texts: Sequence[str]) -> pa.RecordBatch:
    """Return these texts as the rows that a task returns."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], [ROW_COLUMN])


def rows_of(tasks: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Any]) -> list[str]:
    """Run `task` on the rows of a DataFrame, and return its texts.

    The schema is an object, because a Connect server would have to parse a text.
    """
    from pyspark.sql.types import StringType, StructType

    rows = tasks.mapInArrow(task, StructType().add(ROW_COLUMN, StringType()))
    return rows.toArrow().column(0).to_pylist()


class WorkerFailed(Exception):
    """Errors in a worker, by shard; an error without a shard has an empty key.

    Spark returns only the text of an exception, so the text contains the errors as JSON.
    """

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        plain = {shard: plain_error(error) for shard, error in errors.items()}
        super().__init__(f"{_ERRORS_MARK}{json.dumps(plain)}")


def worker_errors(error: Exception) -> dict[str, LeaseholdError]:
    """Return the errors of a `WorkerFailed` that Spark reports; empty for another exception."""
    text = str(error)
    at = text.rfind(_ERRORS_MARK)
    if at < 0:
        return {}
    try:
        plain, _ = json.JSONDecoder().raw_decode(text, at + len(_ERRORS_MARK))
    except ValueError:
        return {}  # Spark has cut the text
    return {shard: error_of(values) for shard, values in plain.items()}


def plain_error(error: BaseException) -> Plain:
    """Return the kind, message and fields of an error, without fields that JSON cannot hold."""
    fields = {name: value for name, value in vars(error).items() if _fits_json(value)}
    return {"kind": type(error).__name__, "message": str(error), "fields": fields}


def error_of(values: Mapping[str, Any]) -> LeaseholdError:
    """Recreate an error from the result of `plain_error`.

    An error of this project keeps its type. Any other type comes from reading, because a worker
    converts errors of a transform to `TransformError`.
    """
    kind, message = values["kind"], values["message"]
    for candidate in _kinds(LeaseholdError):
        if candidate.__name__ == kind:
            error = candidate.__new__(candidate)
            # The constructors of some errors take other arguments, which cannot be restored.
            Exception.__init__(error, message)
            vars(error).update(values["fields"])
            return error
    return SourceError(f"Reading failed with {kind}: {message}")


def _kinds(root: type[LeaseholdError]) -> Iterator[type[LeaseholdError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _fits_json(value: object) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
