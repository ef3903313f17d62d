"""LogGroups become records: values, keys, times and attributes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.record_columns import PlacedGroup, add_logs
from dagster_leasehold.shard_sources.record_columns import RecordColumns
from dagster_leasehold.shard_sources.source import record_schema

NUMBER = 1447299606896632356


def group(*logs: dict[str, bytes], nanoseconds: int = 0, tags: dict[str, str] | None = None) -> Any:
    from aliyun.log.proto import LogGroupRaw

    made = LogGroupRaw(Topic="nginx", Source="10.0.0.7")
    for name, value in (tags or {}).items():
        made.LogTags.add(Key=name, Value=value)
    for number, contents in enumerate(logs):
        log = made.Logs.add(Time=1700000000 + number, Time_ns=nanoseconds)
        for name, value in contents.items():
            log.Contents.add(Key=name, Value=value)
    return made


def options(value: str = "", key: str = "") -> LogHubOptions:
    return LogHubOptions(
        endpoint="http://127.0.0.1", project="project", value_field=value, key_field=key
    )


def rows(
    made: Any, fields: LogHubOptions | None = None, first: int = 0, stop: int | None = None
) -> Any:
    columns = RecordColumns(ShardId("3"))
    add_logs(columns, fields or options(), PlacedGroup(NUMBER, made, NUMBER + 1), first, stop)
    batch = columns.batch()
    assert batch.schema.equals(record_schema())
    return batch.to_pylist()


def test_a_value_is_json_of_all_fields_the_same_for_the_same_fields() -> None:
    first, second = rows(group({"b": b"2", "a": "ä".encode()}, {"a": "ä".encode(), "b": b"2"}))
    assert first["value"] == second["value"] == '{"a":"ä","b":"2"}'.encode()
    assert first["key"] is None
    assert json.loads(rows(group({}))[0]["value"]) == {}


def test_bytes_that_are_not_utf8_are_base64() -> None:
    (row,) = rows(group({"x": b"\xff\x00", "y": b"text"}))
    assert row["value"] == b'{"x_base64":"/wA=","y":"text"}'


def test_a_named_field_is_the_value_as_bytes_and_the_others_are_attributes() -> None:
    fields = options(value="content", key="user")
    one, two = rows(
        group({"content": b"\xff\r\n", "user": b"\x00", "level": b"info"}, {"level": b"warn"}),
        fields,
    )
    assert (one["value"], one["key"]) == (b"\xff\r\n", b"\x00")
    assert dict(one["attributes"])["level"] == "info"
    assert "content" not in dict(one["attributes"])
    assert (two["value"], two["key"]) == (None, None)


def test_a_group_s_topic_source_and_tags_are_attributes_and_no_field_hides_them() -> None:
    made = group({"__topic__": b"forged", "v": b"1"}, tags={"__hostname__": "web-1"})
    attributes = dict(rows(made, options(value="v"))[0]["attributes"])
    assert attributes == {
        "__tag__:__hostname__": "web-1",
        "__topic__": "nginx",
        "__source__": "10.0.0.7",
    }


@pytest.mark.parametrize(
    ("nanoseconds", "microseconds", "rest"),
    [(0, 0, None), (123_456_000, 123_456, None), (123_456_789, 123_456, "123456789")],
)
def test_times_are_exact_to_the_nanosecond(
    nanoseconds: int, microseconds: int, rest: str | None
) -> None:
    row = rows(group({"a": b"1"}, nanoseconds=nanoseconds))[0]
    expected = datetime.fromtimestamp(1700000000, UTC).replace(microsecond=microseconds)
    assert row["event_time"] == expected
    assert dict(row["attributes"]).get("__time_ns_part__") == rest


def test_a_part_of_a_group_has_the_cursors_of_the_whole() -> None:
    made = group(*({"n": str(number).encode()} for number in range(5)))
    whole = rows(made)
    assert [row["cursor"] for row in whole] == [
        str(NUMBER), *(f"{NUMBER}.{index}" for index in range(1, 5))
    ]  # fmt: skip
    assert rows(made, first=2, stop=4) == whole[2:4]
    assert {row["shard_id"] for row in whole} == {"3"}


def test_the_same_logs_give_the_same_columns() -> None:
    columns, fields = RecordColumns(ShardId("3")), options(key="user")
    made = group(
        {"user": b"u", "text": 'ä "\\/\x00\x1f\x7f\u2028\r\n\t😀'.encode()}, {"z": b"", "A": b"1"}
    )
    add_logs(columns, fields, PlacedGroup(NUMBER, made, NUMBER + 1), 0, None)
    made = group({"x": b"\xff"}, nanoseconds=1_002, tags={"t": "1"})
    add_logs(columns, fields, PlacedGroup(NUMBER + 1, made, NUMBER + 2), 0, None)
    batch = columns.batch()
    batch.validate(full=True)
    common = [("__topic__", "nginx"), ("__source__", "10.0.0.7")]
    assert batch.to_pydict() == {
        "shard_id": ["3"] * 3,
        "cursor": [str(NUMBER), f"{NUMBER}.1", str(NUMBER + 1)],
        "event_time": [
            datetime.fromtimestamp(1700000000, UTC),
            datetime.fromtimestamp(1700000001, UTC),
            datetime.fromtimestamp(1700000000, UTC).replace(microsecond=1),
        ],
        "key": [b"u", None, None],
        "value": [
            '{"text":"ä \\"\\\\/\\u0000\\u001f\x7f\u2028\\r\\n\\t😀","user":"u"}'.encode(),
            b'{"A":"1","z":""}',
            b'{"x_base64":"/w=="}',
        ],
        "attributes": [common, common, [("__tag__:t", "1"), *common, ("__time_ns_part__", "1002")]],
    }


@pytest.mark.parametrize("fields", [options(), options(value="a", key="b")])
def test_a_group_without_logs_has_no_rows(fields: LogHubOptions) -> None:
    assert rows(group({"a": b"1"}), fields, first=1) == []


def repeated(*fields: tuple[str, bytes]) -> Any:
    made = group({})
    for name, value in fields:
        made.Logs[0].Contents.add(Key=name, Value=value)
    return made


def test_all_fields_with_one_name_are_kept_in_the_value() -> None:
    (row,) = rows(repeated(("a", b"1"), ("b", b"2"), ("a", b"3")))
    assert row["value"] == b'{"a":"3","a#1":"1","b":"2"}'
    (row,) = rows(repeated(("x_base64", b"1"), ("x", b"\xff")))
    assert row["value"] == b'{"x_base64":"/w==","x_base64#1":"1"}'


def test_all_fields_and_tags_with_one_name_are_kept_as_attributes() -> None:
    made = repeated(("v", b"1"), ("a", b"2"), ("v", b"3"), ("a", b"4"))
    for value in ("web-1", "web-2"):
        made.LogTags.add(Key="host", Value=value)
    (row,) = rows(made, options(value="v"))
    assert row["value"] == b"3"
    attributes = dict(row["attributes"])
    assert (attributes["v#1"], attributes["a#1"], attributes["a"]) == ("1", "2", "4")
    assert (attributes["__tag__:host#1"], attributes["__tag__:host"]) == ("web-1", "web-2")
