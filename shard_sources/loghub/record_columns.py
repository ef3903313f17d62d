"""LogGroups as records: the columns of every source from the service's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC, SOURCE, TAG, NANOSECONDS = "__topic__", "__source__", "__tag__:", "__time_ns_part__"


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a log that become a record's value and key; an empty name is none.

    Attributes:
        value: the field whose bytes are the value; its log's other fields are attributes. Without
            it, the value is JSON of all fields.
        key: the field whose bytes are the key.
    """

    value: str = ""
    key: str = ""


@dataclass(slots=True)
class RecordColumns:
    """Records on their way into an Arrow batch.

    `event_time` is the log's own time, cut to microseconds. Attributes are the group's topic,
    source and tags, under the names by which the service's queries know them, and the log's
    nanoseconds where microseconds do not hold them.
    """

    shard: ShardId
    fields: Fields
    cursors: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    attributes: list[list[tuple[str, str]]] = field(default_factory=list)
    bytes: int = 0

    def add(self, group: Any, number: int, first: int, stop: int | None) -> None:
        """Records `[first, stop)` of the LogGroup that the service's cursor `number` is before."""
        common = group_attributes(group)
        text = str(GroupCursor(number))
        for index, log in enumerate(group.Logs[first:stop], first):
            nanoseconds = log.Time_ns
            contents = {content.Key: content.Value for content in log.Contents}
            extra = dict(common)
            if nanoseconds % 1000:
                extra[NANOSECONDS] = str(nanoseconds)
            key = contents.get(self.fields.key) if self.fields.key else None
            if self.fields.value:
                value = contents.pop(self.fields.value, None)
                extra = {**_as_text(contents), **extra}
            else:
                value = json_value(contents)
            self.cursors.append(f"{text}.{index}" if index else text)
            self.times.append(log.Time * 1_000_000 + nanoseconds // 1000)
            self.keys.append(key)
            self.values.append(value)
            self.attributes.append(list(extra.items()))
            self.bytes += len(value or b"")

    def batch(self) -> pa.RecordBatch:
        """The records as `record_schema()`."""
        import pyarrow as pa

        schema = record_schema()
        columns: list[Any] = [
            pa.repeat(pa.scalar(str(self.shard)), len(self.cursors)),
            self.cursors,
            self.times,
            self.keys,
            self.values,
            self.attributes,
        ]
        arrays = [
            pa.array(column, type=each.type) if isinstance(column, list) else column
            for column, each in zip(columns, schema, strict=True)
        ]
        return pa.record_batch(arrays, schema=schema)


def group_attributes(group: Any) -> dict[str, str]:
    """Return the attributes that a LogGroup gives to all its logs."""
    attributes = {TAG + tag.Key: tag.Value for tag in group.LogTags}
    if group.Topic:
        attributes[TOPIC] = group.Topic
    if group.Source:
        attributes[SOURCE] = group.Source
    return attributes


def json_value(contents: Mapping[str, bytes]) -> bytes:
    """A log's fields as one JSON object: the same fields are the same bytes.

    Names are sorted, nothing is escaped that need not be, there are no blanks, and every value is
    a string. A value that is not UTF-8 stands in base64 under its name with `_base64` added. Of
    fields with one name, the last is kept, as the service's own clients do.
    """
    return json.dumps(
        _as_text(contents), ensure_ascii=False, sort_keys=True, separators=(",", ":")
    ).encode("utf-8", "surrogatepass")


def _as_text(contents: Mapping[str, bytes]) -> dict[str, str]:
    try:
        return {name: value.decode() for name, value in contents.items()}
    except UnicodeDecodeError:
        return dict(_named_text(name, value) for name, value in contents.items())


def _named_text(name: str, value: bytes) -> tuple[str, str]:
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        import base64

        return f"{name}_base64", base64.b64encode(value).decode()
