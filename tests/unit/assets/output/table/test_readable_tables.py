"""Columns of any name, type and values: each engine reads them back, or they are refused before.

A case is a column over two batches. Rows that not every engine can read go to quarantine, and a
column that no table can have is refused in one true sentence before anything is committed. Records
have times of any kind, folders names of any kind, and some tables are compacted and read again.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import checked
from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.assets.output.committed_output import iter_records
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands.records import json_lines
from dagster_leasehold.shard_sources.event_times import moment_of, outside_calendar, without
from tests.table_engines import duckdb_with_iceberg, polars_scan, pyiceberg_rows
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing

COLUMNS = 12
EVENT_TIME = "event_time"
FIELDS = ["x", "y z", "Ü", "0", "more"]
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
    pa.decimal128(5, 2), pa.decimal128(38, 38), pa.duration("us"), pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()), pa.null(),
]  # fmt: skip
UNTYPED: list[pa.DataType] = [
    pa.null(), pa.list_(pa.null()), pa.struct([]), pa.map_(pa.string(), pa.null()),
    pa.list_(pa.struct([])),
]  # fmt: skip
TIMES: list[pa.DataType] = [
    pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("s", "Europe/Berlin"),
    pa.timestamp("ms"), pa.timestamp("ns", "UTC"), pa.date32(), pa.string(), pa.int64(),
    pa.list_(pa.timestamp("us")), pa.null(),
]  # fmt: skip
WIDER: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int64(), pa.int16(): pa.int32(), pa.int32(): pa.int64(),
    pa.uint8(): pa.int64(), pa.uint32(): pa.int64(), pa.float16(): pa.float64(),
    pa.float32(): pa.float64(), pa.decimal128(5, 2): pa.decimal128(12, 2),
    pa.string(): pa.large_string(),
}  # fmt: skip
S = 1_000_000
RECORD_TIMES = [
    None, 0, -1, 1_769_846_400 * S, 1_769_846_400 * S + 1, -62_135_596_800 * S,
    253_402_300_800 * S - 1, 253_402_300_800 * S, -62_135_596_801 * S, 2**63 - 1, -(2**63),
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
            fields = draw.sample(FIELDS[:-1], draw.randint(1, 3))
            return pa.struct([(name, drawn_type(draw, depth + 1)) for name in fields])


def wider(kind: Any) -> pa.DataType:
    """Return the type with each part widened that a table can widen, and a field more."""
    of = pa.types
    if of.is_struct(kind):
        return pa.struct(
            [*((each.name, wider(each.type)) for each in kind), (FIELDS[-1], pa.int32())]
        )
    if of.is_map(kind):
        return pa.map_(kind.key_type, wider(kind.item_type))
    return pa.list_(wider(kind.value_type)) if of.is_list(kind) else WIDER.get(kind, kind)


def drawn_kinds(draw: random.Random, kind: Any) -> tuple[Any, Any]:
    """Return the types of a column in two batches; None where it is not there."""
    later: Any = kind
    match draw.randint(0, 9):
        case 0 | 1:
            later = wider(kind)
        case 2:
            later = draw.choice(UNTYPED)
        case 3:
            later = None
        case 4:
            later = drawn_type(draw)
        case 5 if pa.types.is_struct(kind):
            later = pa.struct([*kind][::-1])
        case _:
            pass
    return draw.choice([(kind, later), (later, kind)])


def has_no_type(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return has_no_type(kind.key_type) or has_no_type(kind.item_type)
    if pa.types.is_nested(kind):
        parts = [kind.field(at).type for at in range(kind.num_fields)]
        every = all if pa.types.is_struct(kind) else any
        return every(has_no_type(part) for part in parts)
    return pa.types.is_null(kind)


def drawn_value(draw: random.Random, kind: Any, nulls: bool = True) -> Any:
    of = pa.types
    if of.is_null(kind) or (nulls and draw.random() < 0.2):
        return None
    if of.is_dictionary(kind):
        return drawn_value(draw, kind.value_type, nulls)
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
        per_s = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
        return seconds * per_s + (kind.unit == "ns" and draw.random() < 0.02)
    if of.is_date32(kind):
        return draw.choice([0, 20_000, -719_162, 2_932_896, -719_163, 2_932_897, 2**31 - 1])
    if of.is_date64(kind):
        return 86_400_000 * draw.choice([0, 20_000, -719_162, 2_932_896, 2_932_897, -(2**30)])
    if of.is_timestamp(kind) and kind.unit == "ns":
        lost = draw.random() < 0.02
        return draw.choice([0, -1_000, 1_769_846_400_000_001_000, -(2**62) // 1_000 * 1_000]) + lost
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
    """A column in two batches, which may change its type, go, come, or be there twice."""

    def __init__(self, draw: random.Random, name: str = "") -> None:
        self.name = name or drawn_name(draw)
        if name:
            self.kinds = draw.choice(TIMES), draw.choice(TIMES)
        else:
            self.kinds = drawn_kinds(draw, drawn_type(draw))
        self.values = [
            [None if kind is None else drawn_value(draw, kind) for _ in range(RECORDS)]
            for kind in self.kinds
        ]
        self.twice = not name and draw.random() < 0.03
        self.written: dict[str, Any] = {}

    def refuse(self, number: int) -> None:
        """Leave the column out of a batch that it was refused in."""
        kinds, values = [*self.kinds], [*self.values]
        if self.name == EVENT_TIME and number and kinds[0] is not None:
            # The record's own time does not fit either.
            kinds[1], values[1] = kinds[0], values[0]
        else:
            kinds[number], values[number] = None, [None] * RECORDS
        if self.name == EVENT_TIME and not number:
            kinds[1], values[1] = None, [None] * RECORDS
        self.kinds, self.values = (kinds[0], kinds[1]), values
        kept = {at: value for at, value in self.written.items() if int(at) // RECORDS != number}
        self.written = kept

    def put(self, table: pa.Table, number: int, cursors: list[str]) -> pa.Table:
        """Return a table with the column of one batch."""
        own = [self.values[number][int(cursor) % RECORDS] for cursor in cursors]
        column = pa.array(own, self.kinds[number])
        if self.name in table.schema.names:
            return table.set_column(table.schema.names.index(self.name), self.name, column)
        for _ in range(1 + self.twice):
            table = table.append_column(self.name, column)
        return table

    def note(self, plain: pa.Table, number: int, cursors: list[str]) -> None:
        """Remember what a batch holds; what has no type is null in a table."""
        values: Any = plain.column(self.name)
        if has_no_type(self.kinds[number]):
            values = pa.nulls(len(values))
        if self.name == EVENT_TIME and (outside := outside_calendar(values)) is not None:
            values = without(values, outside)
        self.written |= dict(zip(cursors, values, strict=True))

    def __repr__(self) -> str:
        return f"{self.name!r} {self.kinds} {self.values}"


class TimedLog:
    """A log whose records have drawn times, such as a source can give them."""

    def __init__(self, log: Any, draw: random.Random) -> None:
        self._log = log
        self.times = [draw.choice(RECORD_TIMES) for _ in range(2 * RECORDS)]

    def read(self, range_: Any) -> Iterator[pa.RecordBatch]:
        for batch in self._log.read(range_):
            own = [self.times[int(cursor)] for cursor in batch.column("cursor").to_pylist()]
            at = batch.schema.get_field_index(EVENT_TIME)
            times = pa.array(own, pa.int64()).cast(batch.schema.field(at).type)
            yield batch.set_column(at, EVENT_TIME, times)

    def stored(self, cursor: str) -> tuple[datetime | None, Any]:
        """Return the time that a table holds, and the attributes, in their normal form."""
        time = self.times[int(cursor)]
        moment = None if time is None else moment_of(time)
        lost = {} if time is None or moment is not None else {"event_time_us": str(time)}
        return moment, lost or []


def normal(value: Any) -> Any:
    """A value in one form, whichever engine gives it."""
    items = value if isinstance(value, list) else []
    if items and all(isinstance(each, dict) and {*each} == {"key", "value"} for each in items):
        value = [(each["key"], each["value"]) for each in items]
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return (
            normal(dict(value))
            if isinstance(value[0][0], str)
            else {key_text(key): normal(inner) for key, inner in value}
        )
    if isinstance(value, dict):
        # Fields that a struct of another batch has are null.
        items = [each for each in value.items() if each[0] not in FIELDS or each[1] is not None]
        return {key_text(name): normal(inner) for name, inner in items} or []
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


def refused(world: World, cases: list[Case], number: int, draw: random.Random) -> str:
    """Consume one batch of these columns; return the sentence that it is refused with."""
    order = draw.random()

    def keeps(rows: pa.RecordBatch) -> pa.RecordBatch:
        table = pa.Table.from_batches([rows])
        cursors = table.column("cursor").to_pylist()
        present = [case for case in cases if case.kinds[number] is not None]
        for case in present:
            table = case.put(table, number, cursors)
        places = [*range(table.num_columns)]
        random.Random(order).shuffle(places)
        # As a worker does, whose output is in plain types and in UTC.
        plain = checked(table.select(places), world.ids[0], "t").combine_chunks()
        for case in present:
            case.note(plain, number, cursors)
        return plain.to_batches()[0]

    world.sweeper.keeps = keeps
    try:
        [report] = world.consume(f"run-{number}-{len(cases)}").values()
    except TransformError as error:
        return str(error)
    return report.error if report.stopped is StopReason.FAILED else ""


Engines = dict[str, Callable[[Publishing], list[dict[str, Any]]]]


def by_duckdb(table: Publishing) -> list[dict[str, Any]]:
    rows = duckdb_with_iceberg().execute("FROM iceberg_scan(?)", [table.metadata_at()])
    return rows.to_arrow_table().to_pylist()


ENGINES: Engines = {
    "duckdb": by_duckdb,
    "pyiceberg": lambda table: pyiceberg_rows(table.metadata_at()),
    "polars": lambda table: polars_scan(table.metadata_at()).collect().to_dicts(),
}
FOLDERS = [
    "plain", "a b", "é☃", "a+b", "a=b", "it's", "a,b", "[a]", "50%off", "%zz", "50%25off", "a%2Fb",
    'say "x"', "日本 😀", "a\\b", "{a,b}", "a*b", "$HOME", "~", "a;b&c|d", " both ends ",
    "x#1", "x?1", "a?b#c", "a\nb",
]  # fmt: skip


def drawn_place(folder: Path, draw: random.Random) -> tuple[Path, OutputPlace]:
    """Return a folder of any name; a plain one where the name is refused in a sentence."""
    home = folder / draw.choice(FOLDERS)
    try:
        place = output_place(home / "output")
    except InvalidSetting as error:
        sentence = str(error)
        home = folder / "plain"
        place = output_place(home / "output")
    else:
        sentence = "choose another folder"
    assert "choose another folder" in sentence
    assert "\n" not in sentence
    assert not FOREIGN_WORDS.search(sentence)
    assert not [*folder.iterdir()]
    home.mkdir()
    return home, place


def consumed(world: World, cases: list[Case], number: int, draw: random.Random) -> None:
    """Consume a batch without the columns that are refused in it."""
    before = world.committed(world.ids[0])
    while sentence := refused(world, cases, number, draw):
        assert not FOREIGN_WORDS.search(sentence), sentence
        assert "\n" not in sentence, sentence
        refusals = [
            case for case in cases if case.kinds[number] is not None and refers(sentence, case.name)
        ]
        assert refusals, f"{sentence} names none of {cases}"
        assert world.committed(world.ids[0]) == before, "nothing is committed"
        refusals[-1].refuse(number)


def check_rows(publishing: Publishing, expected: Rows, engines: Engines, cases: list[Case]) -> None:
    """Compare what each engine and `cat` read with what was written."""
    listed = {
        case.name for case in cases if "list<" in str(case.kinds) and "struct" in str(case.kinds)
    }
    for engine, read in engines.items():
        found = by_cursor(read(publishing))
        assert set(found) == set(expected), engine
        for cursor, row in expected.items():
            for name, value in row.items():
                got = found[cursor].get(name)
                # PyIceberg makes an empty list of a null one that holds structs.
                empty = engine == "pyiceberg" and value is None and got == [] and name in listed
                assert empty or got == value, (engine, name, got, value, cases)
    world = publishing.world
    lines = [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        for batch in iter_records(world.store, world.key, world.place)
        for line in json_lines(batch)
    ]
    assert sorted(line["cursor"] for line in lines) == sorted(expected)


def check_table(
    folder: Path, seed: int, engines: Engines = ENGINES, *, without: str = "no such type"
) -> None:
    """Write and read one table of a dozen cases, without types of some names."""
    draw = random.Random(seed)
    folder, place = drawn_place(folder, draw)
    world = World(folder, shards=1, records=0, records_max=100, elsewhere=place)
    log = TimedLog(world.log, draw)
    world.sweeper.log = cast(Any, log)
    publishing = Publishing(folder, world=world)
    drawn = [Case(draw) for _ in range(COLUMNS)]
    if draw.random() < 0.4:
        drawn.append(Case(draw, EVENT_TIME))
    named = {each.name: each for each in drawn if not re.search(without, str(each.kinds))}
    cases = [*named.values()]
    expected: Rows = {}
    for number in range(2):
        world.append(world.ids[0], RECORDS)
        consumed(world, cases, number, draw)
        publishing.publish()
        lost = {record.cursor for record in quarantined_records(world.store, world.key, place)}
        for cursor in map(str, range(number * RECORDS, (number + 1) * RECORDS)):
            if cursor in lost:
                continue
            time, attributes = log.stored(cursor)
            own = {each.name: each.written.get(cursor) for each in cases}
            row = {
                name: None if value is None else value.as_py()
                for name, value in own.items()
                if name != EVENT_TIME or cursor in named[EVENT_TIME].written
            }
            row = {EVENT_TIME: time, **row}
            expected[cursor] = {name: normal(value) for name, value in row.items()}
            expected[cursor]["attributes"] = attributes
    check_rows(publishing, expected, engines, cases)
    if draw.random() < 0.3:
        names = map(str, count())
        compactor = Compactor(
            store=world.store,
            key=world.key,
            output_root=place,
            run="compact",
            new_attempt=lambda: next(names),
        )
        [report] = compactor.compact(world.ids).values()
        assert not report.error
        publishing.publish()
        check_rows(publishing, expected, engines, cases)


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
