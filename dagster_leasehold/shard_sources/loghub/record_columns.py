"""LogGroups as records, in the columns of every source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.record_columns import RecordColumns, by_name, named_text

TOPIC, SOURCE, TAG, NANOSECONDS = "__topic__", "__source__", "__tag__:", "__time_ns_part__"


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A LogGroup, the number of its cursor, and the number of the next cursor."""

    number: int
    group: Any
    next_number: int


def add_logs(
    columns: RecordColumns,
    options: LogHubOptions,
    placed: PlacedGroup,
    first: int,
    stop: int | None,
) -> None:
    """Append records `[first, stop)` of a LogGroup.

    `event_time` is the log's own time in microseconds; if that loses nanoseconds, an attribute has
    them. Further attributes are the group's topic, source and tags, named as in the service's
    queries.
    """
    logs = placed.group.Logs[first:stop]
    text = str(GroupCursor(placed.number))
    indices = range(first, first + len(logs))
    columns.cursors += [f"{text}.{index}" if index else text for index in indices]
    times = [(log.Time, log.Time_ns) for log in logs]
    columns.times += [seconds * 1_000_000 + rest // 1000 for seconds, rest in times]
    key, value = options.key_field, options.value_field
    contents = [_contents(log) for log in logs] if key or value else []
    columns.keys += [each.get(key) for each in contents] if key else [None] * len(logs)
    columns.add_values(
        [each.pop(value, None) for each in contents] if value else _json_values(logs)
    )
    common = _group_attributes(placed.group)
    for at, (_, rest) in enumerate(times):
        attributes = {**_as_text(contents[at]), **common} if value else common
        if rest % 1000:
            attributes = {**attributes, NANOSECONDS: str(rest)}
        columns.add_attributes(attributes)


def _group_attributes(group: Any) -> dict[str, str]:
    attributes = by_name([(TAG + tag.Key, tag.Value) for tag in group.LogTags])
    if group.Topic:
        attributes[TOPIC] = group.Topic
    if group.Source:
        attributes[SOURCE] = group.Source
    return attributes


def _contents(log: Any) -> dict[str, bytes]:
    return by_name([(field.Key, field.Value) for field in log.Contents])


def _json_values(logs: Sequence[Any]) -> list[bytes | None]:
    """Return each log's fields as JSON with string values; equal fields give equal bytes.

    Names are sorted, characters are escaped only where JSON requires it, and there is no white
    space. See `named_text` and `by_name` for values that are not UTF-8 and for repeated names.
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
        return by_name([named_text(name, value) for name, value in contents.items()])
