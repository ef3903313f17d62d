"""Columns of any name, type and values: each engine reads them back, or they are refused before.

A case is a column over two batches. Rows that not every engine can read go to quarantine, and a
column that no table can have is refused in one true sentence before anything is committed. Records
have times of any kind, folders names of any kind, and some tables are compacted and read again.
"""

from __future__ import annotations

import json
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
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.places.place import OutputPlace
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands.records import json_lines
from dagster_leasehold.shard_sources.event_times import moment_of, outside_calendar, without
from tests.ledger_output import ledger_records
from tests.table_engines import duckdb_with_iceberg, polars_scan, pyiceberg_rows
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.drawn_columns import (
    EVENT_TIME,
    FIELDS,
    RECORD_TIMES,
    TIMES,
    drawn_kinds,
    drawn_name,
    drawn_type,
    drawn_value,
    has_no_type,
)
from tests.unit.assets.output.table.publishing_world import Publishing

COLUMNS = 12
RECORDS = 4
FOREIGN_WORDS = re.compile(r"disk|permission|may write|KeyError|Traceback|NoneType", re.IGNORECASE)


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

    def refuse(self, number: int, committed: set[str]) -> None:
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
        self.written = {at: each for at, each in self.written.items() if at in committed}

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
        """Remember the rows of a batch; a column without a type is null in a table."""
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


def committed_cursors(world: World) -> set[str]:
    batches = ledger_records(world.store, world.key, world.place)
    return {cursor for batch in batches for cursor in batch.column("cursor").to_pylist()}


def consumed(world: World, cases: list[Case], number: int, draw: random.Random) -> None:
    """Consume a batch without the columns that are refused in it."""
    before = committed_cursors(world)
    while sentence := refused(world, cases, number, draw):
        assert not FOREIGN_WORDS.search(sentence), sentence
        assert "\n" not in sentence, sentence
        refusals = [
            case for case in cases if case.kinds[number] is not None and refers(sentence, case.name)
        ]
        assert refusals, f"{sentence} names none of {cases}"
        # A value can be refused alone, after the records before it.
        committed = committed_cursors(world)
        alone = re.search("would lose data|Index 0 out of bounds", sentence)
        assert committed == before or alone, "nothing is committed"
        refusals[-1].refuse(number, before := committed)


def check_rows(publishing: Publishing, expected: Rows, engines: Engines, cases: list[Case]) -> None:
    """Compare the rows that each engine and `cat` read with the written rows."""
    listed = {case.name for case in cases if re.search("(list|map).*struct", str(case.kinds))}
    for engine, read in engines.items():
        rows = by_cursor(read(publishing))
        assert set(rows) == set(expected), engine
        for cursor, row in expected.items():
            for name, value in row.items():
                got = rows[cursor].get(name)
                # PyIceberg makes an empty list of a null one that holds structs.
                empty = engine == "pyiceberg" and value is None and got == [] and name in listed
                assert empty or got == value, (engine, name, got, value, cases)
    world = publishing.world
    lines = [
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        for batch in CommittedOutput(world.store, world.key, world.place).plan().batches()
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
def test_written_values_are_read_back_equal(tmp_path: Path, seed: int) -> None:
    """Goal: no name, type or value makes a table that an engine cannot read, or reads otherwise."""
    check_table(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize(
    "hundred", [0, *(pytest.param(each, marks=pytest.mark.release) for each in range(1, 10))]
)
def test_10_000_columns_are_read_back_equal(tmp_path: Path, hundred: int) -> None:
    for seed in range(100 + 100 * hundred, 200 + 100 * hundred):
        (folder := tmp_path / str(seed)).mkdir()
        check_table(folder, seed)
