"""Columns of any name, type and values: each engine reads them back, or they are refused before.

A case is a column over two batches. Rows that not every engine can read go to quarantine, and a
column that no table can have is refused in one true sentence before anything is committed.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import checked
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.committed_output import iter_records
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.orchestration.commands.records import json_lines
from tests.table_engines import duckdb_with_iceberg, polars_scan, pyiceberg_rows
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing

COLUMNS = 12
RECORDS = 4
FOREIGN_WORDS = re.compile(r"disk|permission|may write|KeyError|Traceback|NoneType", re.IGNORECASE)
LETTERS = [
    "a",
    "B",
    "é",
    "☃",
    " ",
    ".",
    "-",
    "/",
    "%",
    '"',
    "'",
    "`",
    "\\",
    "0",
    "_",
    "$",
    "=",
    "\n",
]
NAMES = ["select", "value_", "a b", "a.b", "Ä", "x" * 200, "1st", "element", "_", "-", "#", "日付"]


def drawn_name(draw: random.Random) -> str:
    if draw.random() < 0.4:
        return draw.choice(NAMES)
    return "".join(draw.choices(LETTERS, k=draw.randint(1, 6)))


PLAIN: list[pa.DataType] = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary(3),
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
    pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"),
    pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), pa.decimal128(38, 0),
    pa.decimal128(5, 2), pa.decimal128(38, 38), pa.duration("us"), pa.null(),
]  # fmt: skip


def drawn_type(draw: random.Random, depth: int = 0) -> pa.DataType:
    if depth == 2 or draw.random() < 0.7:
        # A nested type without a type in it is stored as null: tests of columns hold that.
        return draw.choice(PLAIN[:-1] if depth else PLAIN)
    inner = drawn_type(draw, depth + 1)
    match draw.randint(0, 4):
        case 0:
            return pa.list_(inner)
        case 1:
            return pa.large_list(inner)
        case 2:
            return pa.list_(inner, 2)
        case 3:
            return pa.map_(draw.choice(PLAIN[:-1]), inner)
        case _:
            fields = draw.sample(["x", "y z", "Ü", "0"], draw.randint(1, 3))
            return pa.struct([(name, drawn_type(draw, depth + 1)) for name in fields])


def drawn_value(draw: random.Random, kind: Any, nulls: bool = True) -> Any:
    of = pa.types
    if of.is_null(kind) or (nulls and draw.random() < 0.2):
        return None
    if of.is_map(kind):
        keys = [drawn_value(draw, kind.key_type, False) for _ in range(draw.randint(0, 3))]
        return [(key, drawn_value(draw, kind.item_type)) for key in keys if key is not None]
    if of.is_struct(kind):
        return {field.name: drawn_value(draw, field.type) for field in kind}
    if of.is_nested(kind):
        size = kind.list_size if of.is_fixed_size_list(kind) else draw.randint(0, 3)
        return [drawn_value(draw, kind.value_type) for _ in range(size)]
    if of.is_boolean(kind):
        return draw.random() < 0.5
    if of.is_floating(kind):
        return draw.choice([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])
    if of.is_decimal(kind):
        digits = draw.choice([0, 1, 10 ** (kind.precision - 1), 10**kind.precision - 1])
        return Decimal((0, tuple(map(int, str(digits))), -kind.scale))
    if of.is_binary(kind) or of.is_large_binary(kind):
        return draw.choice([b"", b"a", b"\xff\x00", b"long" * 50])
    if of.is_fixed_size_binary(kind):
        return draw.choice([b"abc", b"\xff\x00\x01"])
    if of.is_time(kind):
        seconds = draw.choice([0, 1, 86_399])
        return seconds * {"s": 1, "ms": 1_000, "us": 1_000_000}[kind.unit]
    if of.is_date32(kind):
        return draw.choice([0, 20_000, -719_162, 2_932_896, -719_163, 2_932_897, 2**31 - 1])
    if of.is_date64(kind):
        return 86_400_000 * draw.choice([0, 20_000, -719_162, 2_932_896, 2_932_897, -(2**30)])
    if of.is_timestamp(kind):
        per_s = {"s": 1, "ms": 1_000, "us": 1_000_000}[kind.unit]
        ends = [-62_135_596_800, 253_402_300_799, 253_402_300_800, -62_135_596_801]
        return draw.choice([0, 1_769_846_400, *ends]) * per_s
    if of.is_integer(kind) or of.is_duration(kind):
        bits = kind.bit_width
        signed = not of.is_unsigned_integer(kind)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return draw.choice([0, 1, low, high])
    return draw.choice(["", "a", "é☃😀", "\n\t\"'\\", "NaN", "x" * 300, "\x00"])


class Case:
    """A column in two batches; in the second, it may be gone or null alone."""

    def __init__(self, draw: random.Random) -> None:
        self.name = drawn_name(draw)
        self.kind = drawn_type(draw)
        later = draw.choice([self.kind, self.kind, pa.null(), None])
        self.kinds = draw.choice([(self.kind, later), (later, self.kind)])
        self.values = [
            [None if kind is None else drawn_value(draw, kind) for _ in range(RECORDS)]
            for kind in self.kinds
        ]
        self.written: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"{self.name!r} {self.kinds} {self.values}"


def normal(value: Any) -> Any:
    """A value in one form, whichever engine gives it."""
    items = value if isinstance(value, list) else []
    if items and all(isinstance(each, dict) and {*each} == {"key", "value"} for each in items):
        value = [(each["key"], each["value"]) for each in items]
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {key_text(key): normal(inner) for key, inner in value}
    if isinstance(value, dict):
        return {key_text(name): normal(inner) for name, inner in value.items()} or []
    if isinstance(value, list | tuple):
        return [normal(inner) for inner in value]
    if isinstance(value, float):
        return repr(value + 0.0) if value == value else "nan"
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value


def key_text(key: Any) -> str:
    """A key in one form: numbers without a sign that are too large for Iceberg are decimals."""
    return str(Decimal(key)) if type(key) is int else str(normal(key))


Rows = dict[str, dict[str, Any]]


def by_cursor(rows: list[dict[str, Any]]) -> Rows:
    return {row["cursor"]: {name: normal(value) for name, value in row.items()} for row in rows}


def refused(world: World, cases: list[Case], number: int) -> str:
    """Consume one batch of these columns; return the sentence that it is refused with."""

    def keeps(rows: pa.RecordBatch) -> pa.RecordBatch:
        table = pa.Table.from_batches([rows])
        cursors = table.column("cursor").to_pylist()
        present = [case for case in cases if case.kinds[number] is not None]
        for case in present:
            own = [case.values[number][int(cursor) % RECORDS] for cursor in cursors]
            table = table.append_column(case.name, pa.array(own, case.kinds[number]))
        # As a worker does, whose output is in plain types and in UTC.
        plain = checked(table, world.ids[0], "t").combine_chunks()
        for case in present:
            case.written |= dict(zip(cursors, plain.column(case.name), strict=True))
        return plain.to_batches()[0]

    world.sweeper.keeps = keeps
    try:
        [report] = world.consume(f"run-{number}-{len(cases)}").values()
    except TransformError as error:
        return str(error)
    return report.error if report.stopped is StopReason.FAILED else ""


def by_duckdb(table: Publishing) -> list[dict[str, Any]]:
    rows = duckdb_with_iceberg().execute("FROM iceberg_scan(?)", [table.metadata_at()])
    return rows.to_arrow_table().to_pylist()


ENGINES: dict[str, Callable[[Publishing], list[dict[str, Any]]]] = {
    "duckdb": by_duckdb,
    "pyiceberg": lambda table: pyiceberg_rows(table.metadata_at()),
    "polars": lambda table: polars_scan(table.metadata_at()).collect().to_dicts(),
}
FOLDERS = ["plain", "a b", "é☃", "a+b", "a=b", "it's", "a,b", "[a]"]


def check_table(
    folder: Path,
    seed: int,
    engines: dict[str, Callable[[Publishing], list[dict[str, Any]]]] = ENGINES,
    *,
    without: str = "no such type",
) -> None:
    """Write and read one table of a dozen cases, without types of some names."""
    draw = random.Random(seed)
    folder = folder / draw.choice(FOLDERS)
    folder.mkdir()
    world = World(folder, shards=1, records=0, records_max=100)
    publishing = Publishing(folder, world=world)
    drawn = [Case(draw) for _ in range(COLUMNS)]
    cases = list(
        {each.name: each for each in drawn if not re.search(without, str(each.kinds))}.values()
    )
    expected: Rows = {}
    for number in range(2):
        before = world.committed(world.ids[0])
        world.append(world.ids[0], RECORDS)
        while sentence := refused(world, cases, number):
            assert not FOREIGN_WORDS.search(sentence), sentence
            refusals = [
                case
                for case in cases
                if case.kinds[number] is not None and refers(sentence, case.name)
            ]
            assert refusals, f"{sentence} names none of {cases}"
            assert world.committed(world.ids[0]) == before, "nothing is committed"
            cases.remove(refusals[-1])
        publishing.publish()
        lost = {
            record.cursor for record in quarantined_records(world.store, world.key, world.place)
        }
        for cursor in map(str, range(number * RECORDS, (number + 1) * RECORDS)):
            if cursor not in lost:
                own = {each.name: each.written.get(cursor) for each in cases}
                expected[cursor] = {
                    name: normal(None if value is None else value.as_py())
                    for name, value in own.items()
                }
    for engine, read in engines.items():
        found = by_cursor(read(publishing))
        assert set(found) == set(expected), engine
        for cursor, row in expected.items():
            for name, value in row.items():
                got = found[cursor].get(name)
                # PyIceberg makes an empty list of a null one that holds structs.
                empty = engine == "pyiceberg" and value is None and got == []
                assert empty or got == value, (engine, name, got, value)
    lines = [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        for batch in iter_records(world.store, world.key, world.place)
        for line in json_lines(batch)
    ]
    assert {line["cursor"] for line in lines} == set(expected)


def refers(sentence: str, name: str) -> bool:
    return repr(name)[1:-1][:50] in sentence or name[:50] in sentence


@pytest.mark.parametrize("seed", range(30))
def test_what_is_written_is_read_back_equal(tmp_path: Path, seed: int) -> None:
    """Goal: no name, type or value makes a table that an engine cannot read, or reads otherwise."""
    check_table(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(10))
def test_10_000_columns_are_read_back_equal(tmp_path: Path, hundred: int) -> None:
    for seed in range(100 + 100 * hundred, 200 + 100 * hundred):
        (folder := tmp_path / str(seed)).mkdir()
        check_table(folder, seed)
