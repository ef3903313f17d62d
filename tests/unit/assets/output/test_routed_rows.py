"""Rows by route: strict names, a bounded number of routes, and a place for unknown routes."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.attempts import file_name, shard_and_batches
from dagster_leasehold.assets.output.routed_rows import RoutedTransform, routed
from dagster_leasehold.assets.output.shard_files import RangeFiles
from dagster_leasehold.assets.partition_fields import PartitionField, Partitioning
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.routes import Routing, parsed_route, route_of
from dagster_leasehold.lease_store.identifiers import ShardId

EVENTS = ["clicks", "views", None, "clicks", "../x", "Views", "buys"]


def rows(kinds: list[str | None], **more: pa.Array) -> pa.RecordBatch:
    number = len(kinds)
    return pa.RecordBatch.from_pydict(
        {
            "shard_id": pa.array(["0"] * number),
            "cursor": pa.array([str(each) for each in range(number)]),
            "event_time": pa.nulls(number, pa.timestamp("us", tz="UTC")),
            "key": pa.nulls(number, pa.binary()),
            "value": pa.array([b"v"] * number),
            "kind": pa.array(kinds, pa.string()),
            **more,
        }
    )


def cursors(batch: pa.RecordBatch) -> list[int]:
    return [int(each) for each in batch.column("cursor").to_pylist()]


def divided(routing: Routing, kinds: list[str | None]) -> dict[str | None, list[int]]:
    return {route: cursors(own) for route, own in routed(rows(kinds), routing, set())}


def test_each_route_gets_its_rows_in_order() -> None:
    parts = divided(Routing("kind", room=10), EVENTS)
    assert parts == {"clicks": [0, 3], "views": [1, 5], "": [2, 4], "buys": [6]}


def test_a_task_adds_no_more_routes_than_there_is_room_for() -> None:
    routing, new = Routing("kind", frozenset({"views"}), room=1), set[str]()
    parts = {route: cursors(own) for route, own in routed(rows(EVENTS), routing, new)}
    assert parts == {"clicks": [0, 3], "views": [1, 5], "": [2, 4, 6]}
    assert new == {"clicks"}
    assert [route for route, _ in routed(rows(["buys"]), routing, new)] == [""]


def test_unknown_routes_go_where_the_setting_says() -> None:
    assert divided(Routing("kind", fallback="other"), EVENTS) == {"other": [*range(7)]}
    (route, bad), *_ = routed(rows(["../x"]), Routing("kind", quarantines=True), set())
    assert route is None
    assert bad.column("quarantine_error").to_pylist() == ["The route '../x' in kind is unknown"]


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("clicks", "clicks"),
        ("DE", "de"),
        ("a_1", "a_1"),
        ("", ""),
        (None, ""),
        ("a.b", ""),
        ("a/b", ""),
        ("..", ""),
        ("a-b", ""),
        ("clicks\n", ""),
        ("ünder", ""),
        ("x" * 64, "x" * 64),
        ("x" * 65, ""),
    ],
)
def test_a_name_is_parsed_before_it_becomes_a_path(name: str | None, route: str) -> None:
    assert parsed_route(name) == route


def test_the_name_of_a_file_has_its_route() -> None:
    shard = ShardId("a.7-8.b-route_x.parquet"[:20])
    for part, route in ((0, "clicks"), (3, "a_b"), (1, "")):
        name = file_name(shard, range(4, 6), "0000-ab", part=part, route=route)
        assert shard_and_batches(name) == (shard, range(4, 6))
        assert route_of(f"attempts/run-1/{name}") == route
    assert route_of(file_name(shard, range(1), "r", quarantine=True)) == ""


def test_files_are_divided_by_route_and_partition(tmp_path: Path) -> None:
    numbers = count()
    fields = (PartitionField.parse("size"),)
    files = RangeFiles(
        local_place(tmp_path),
        lambda **kind: file_name(ShardId("0"), range(1), f"{next(numbers)}", **kind),
        ShardId("0"),
        "t",
        partitioning=Partitioning(fields, 100, routing=Routing("kind", room=5, quarantines=True)),
    )
    sizes = pa.array([1, 2, None, 1, None, None, None])
    files.add(rows(EVENTS, size=sizes))
    files.add(rows(["buys"], size=pa.array([9])))
    written = files.finish()
    files.sync()
    by_part = {
        (route_of(each.path), each.partition.get("size")): each.records
        for each in written
        if not each.quarantine
    }
    assert by_part == {
        ("clicks", 1): 2,
        ("views", 2): 1,
        ("views", None): 1,
        ("buys", None): 1,
        ("buys", 9): 1,
    }
    (bad,) = [each for each in written if each.quarantine]
    assert pq.read_table(tmp_path / bad.path).column("cursor").to_pylist() == ["2", "4"]
    for each in written:
        if each.quarantine:
            continue
        route = route_of(each.path)
        names = pq.read_schema(tmp_path / each.path).names
        noted = {column["name"]: column.get("routes") for column in each.columns}
        assert noted == {
            name: [route] if name in names else None for name in (*rows([]).schema.names, "size")
        }
        assert ("size" in names) == (each.partition["size"] is not None or route == "views")
        assert "key" in names


def test_a_column_of_routes_has_texts() -> None:
    numbers = rows(["a"]).set_column(5, "kind", pa.array([1]))
    with pytest.raises(TransformError, match="the names of routes are texts"):
        [*routed(numbers, Routing("kind"), set())]


def test_a_function_adds_the_routes_as_a_column() -> None:
    @arrow_transform
    def doubled(records: pa.Table) -> pa.Table:
        return pa.concat_tables([records, records])

    def by_kind(records: pa.Table) -> pa.ChunkedArray:
        return records.column("kind")

    table = pa.Table.from_batches([rows(["a", None])])
    assert RoutedTransform(by_kind, doubled)(table).column("route").to_pylist() == [
        "a",
        None,
        "a",
        None,
    ]
    assert RoutedTransform(by_kind, None)(table).column("route").to_pylist() == ["a", None]
