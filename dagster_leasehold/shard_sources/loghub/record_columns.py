"""LogGroups as records: the columns of every source from the service's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.record_columns import RecordColumns, by_name

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


class LogColumns(RecordColumns):
    """The columns of logs.

    `event_time` is the log's own time, cut to microseconds. Attributes are the group's topic,
    source and tags, under the names in the service's queries, and the log's
    nanoseconds where microseconds do not hold them.
    """

    def __init__(self, shard: ShardId, fields: Fields) -> None:
        super().__init__(shard)
        self._fields = fields

    def add(self, group: Any, number: int, first: int, stop: int | None) -> None:
        """Add records `[first, stop)` of the LogGroup that the cursor `number` is before."""
        logs = group.Logs[first:stop]
        text = str(GroupCursor(number))
        places = range(first, first + len(logs))
        self.cursors += [f"{text}.{index}" if index else text for index in places]
        moments = [(log.Time, log.Time_ns) for log in logs]
        self.times += [seconds * 1_000_000 + rest // 1000 for seconds, rest in moments]
        key, value = self._fields.key, self._fields.value
        contents = [_contents(log) for log in logs] if key or value else []
        self.keys += [each.get(key) for each in contents] if key else [None] * len(logs)
        self.add_values(
            [each.pop(value, None) for each in contents] if value else _json_values(logs)
        )
        common = group_attributes(group)
        for at, (_, rest) in enumerate(moments):
            attributes = {**_as_text(contents[at]), **common} if value else common
            if rest % 1000:
                attributes = {**attributes, NANOSECONDS: str(rest)}
            self.add_attributes(attributes)


def group_attributes(group: Any) -> dict[str, str]:
    """Return the attributes that a LogGroup gives to all its logs."""
    attributes = by_name([(TAG + tag.Key, tag.Value) for tag in group.LogTags])
    if group.Topic:
        attributes[TOPIC] = group.Topic
    if group.Source:
        attributes[SOURCE] = group.Source
    return attributes


def _contents(log: Any) -> dict[str, bytes]:
    return by_name([(field.Key, field.Value) for field in log.Contents])


def _json_values(logs: Sequence[Any]) -> list[bytes | None]:
    """Each log's fields as one JSON object: the same fields are the same bytes.

    Names are sorted, nothing is escaped that need not be, there are no blanks, and every value is
    a string. A value that is not UTF-8 stands in base64 under its name with `_base64` added. All
    fields with one name are kept: see `by_name`.
    """
    from msgspec.json import Encoder

    encode = Encoder(order="sorted").encode
    values: list[bytes | None] = []
    for log in logs:
        try:
            text = {field.Key: field.Value.decode() for field in log.Contents}
        except UnicodeDecodeError:
            text = {}
        if len(text) < len(log.Contents):
            text = _as_text(_contents(log))
        values.append(encode(text))
    return values


def _as_text(contents: Mapping[str, bytes]) -> dict[str, str]:
    try:
        return {name: value.decode() for name, value in contents.items()}
    except UnicodeDecodeError:
        return by_name([_named_text(name, value) for name, value in contents.items()])


def _named_text(name: str, value: bytes) -> tuple[str, str]:
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        import base64

        return f"{name}_base64", base64.b64encode(value).decode()
