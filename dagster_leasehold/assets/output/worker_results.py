"""Results of Spark's workers in a form that travels: statistics, written files, and errors.

A worker is a process of Spark's own, where neither a variable nor an exception's type finds its
way back to the run. So results become plain values there and are built again here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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
"""The column of the rows that tasks send back."""
_ERRORS_MARK = "leasehold's errors: "
_TIMES = ("first_event_time", "last_event_time")


@dataclass(frozen=True, slots=True)
class RangeStatistics:
    """Statistics of one range that was read to its end.

    Attributes:
        records: the number of records.
        bytes: the bytes of their keys and values.
        first_event_time: the smallest event time, or None.
        last_event_time: the largest event time, or None.
        mistimed: the number of records that came with a time outside the years 1 to 9999.
        mistimed_at: the cursor of the first of them; empty where there is none.
    """

    records: int = 0
    bytes: int = 0
    first_event_time: datetime | None = None
    last_event_time: datetime | None = None
    mistimed: int = 0
    mistimed_at: str = ""

    def plus(self, other: RangeStatistics) -> RangeStatistics:
        """Return the statistics of both ranges together."""
        return RangeStatistics(
            self.records + other.records,
            self.bytes + other.bytes,
            earliest(self.first_event_time, other.first_event_time),
            latest(self.last_event_time, other.last_event_time),
            self.mistimed + other.mistimed,
            self.mistimed_at or other.mistimed_at,
        )

    def plain(self) -> Plain:
        """Return the values for JSON."""
        return _plain(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return what `plain` was made of."""
        return cls(**_times(values))


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a worker wrote and made durable, and the shard it belongs to.

    The event times bound its records'; None if unknown. `untimed` is the number
    of records without one, and `mistimed` of those among them that a transform gave a time outside
    the years 1 to 9999; `mistimed_at` is the first one's cursor, where it has one. `columns` are
    the file's columns as `table.columns` describes them; none of a file of quarantined records.
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

    def data_file(self, attempt: str) -> DataFile:
        """Return the file as the ledger keeps it, relative to the stream's output folder."""
        return DataFile(
            f"{attempt}/{self.path}",
            self.records,
            self.bytes,
            self.quarantine,
            first_event_time=self.first_event_time,
            last_event_time=self.last_event_time,
            untimed=None if self.quarantine else self.untimed,
        )

    def plain(self) -> Plain:
        """Return the values for JSON."""
        return _plain(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return what `plain` was made of."""
        plain: Plain = {**_times(values), "columns": tuple(values.get("columns", ()))}
        return cls(**plain)


def earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the smaller of two times, either of which can be unknown."""
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def latest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the larger of two times, either of which can be unknown."""
    times = [time for time in (one, other) if time is not None]
    return max(times, default=None)


def sent_back(texts: Sequence[str]) -> pa.RecordBatch:
    """Return the rows that a task sends back."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], [ROW_COLUMN])


def rows_of(tasks: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Any]) -> list[str]:
    """Run a job that carries out `task` on rows; return what `sent_back` sent.

    The schema is no text, which a Connect server would be asked to parse.
    """
    from pyspark.sql.types import StringType, StructType

    rows = tasks.mapInArrow(task, StructType().add(ROW_COLUMN, StringType()))
    return rows.toArrow().column(0).to_pylist()


class WorkerFailed(Exception):
    """Errors in a worker, by shard; empty for one that belongs to no shard.

    Spark passes on only the text of an exception, so this text holds the errors as JSON.
    """

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        plain = {shard: plain_error(error) for shard, error in errors.items()}
        super().__init__(f"{_ERRORS_MARK}{json.dumps(plain)}")


def worker_errors(error: Exception) -> dict[str, LeaseholdError]:
    """Return the errors of a `WorkerFailed` that Spark reports; none where it reports another."""
    text = str(error)
    at = text.rfind(_ERRORS_MARK)
    if at < 0:
        return {}
    try:
        plain, _ = json.JSONDecoder().raw_decode(text, at + len(_ERRORS_MARK))
    except ValueError:
        return {}  # Spark has cut it
    return {shard: error_of(values) for shard, values in plain.items()}


def plain_error(error: BaseException) -> Plain:
    """Return an error's kind, sentence and fields, as far as JSON can hold them."""
    fields = {name: value for name, value in vars(error).items() if _travels(value)}
    return {"kind": type(error).__name__, "message": str(error), "fields": fields}


def error_of(values: Mapping[str, Any]) -> LeaseholdError:
    """Return the error that `plain_error` was made of, in its own type if it is this project's.

    Anybody else's comes from reading: a transform's is a `TransformError` before it travels.
    """
    kind, message = values["kind"], values["message"]
    for candidate in _kinds(LeaseholdError):
        if candidate.__name__ == kind:
            error = candidate.__new__(candidate)
            # Some errors take other arguments than their message; the sentence is what counts.
            Exception.__init__(error, message)
            vars(error).update(values["fields"])
            return error
    return SourceError(f"Reading failed with {kind}: {message}")


def _kinds(root: type[LeaseholdError]) -> Iterator[type[LeaseholdError]]:
    """Yield a class of errors and all below it, in whichever room they are declared."""
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _travels(value: object) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def _plain(each: RangeStatistics | WrittenFile) -> Plain:
    values = {field.name: getattr(each, field.name) for field in fields(each)}
    return values | {name: time.isoformat() for name in _TIMES if (time := values[name])}


def _times(values: Mapping[str, Any]) -> Plain:
    times = {name: datetime.fromisoformat(text) for name in _TIMES if (text := values[name])}
    return {**values, **times}
