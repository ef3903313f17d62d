"""Engines that are not ours read the published table as its input was, and open few files of it.

The table: days and files across midnight, so two partition specs; nested types, decimals, both
kinds of timestamps and nulls; a column that came later; a replayed and a compacted shard. A file
that a filter leaves out is removed, so that an engine that opens it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.lease_store.ledger_rows import DataFile
from tests.object_store import ENVIRONMENT, PYICEBERG, new_bucket
from tests.own_environments import PackagesMissing
from tests.spark_iceberg import SparkReader
from tests.table_engines import (
    duckdb_files_read,
    duckdb_with_iceberg,
    let_duckdb_into_the_store,
    polars_scan,
)
from tests.unit.assets.consumption_world import World
from tests.unit.assets.output.table.publishing_world import Publishing
from tests.unit.assets.output.table.test_divided_tables import USERS, scene_of
from tests.unit.assets.output.table.test_evolution import NEW, OLD
from tests.unit.assets.output.table.test_evolution import Scene as EvolvingScene

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NESTED = pa.struct([("a", pa.int32()), ("texts", pa.list_(pa.string()))])
FIRST_DAY = (NEW_YEAR, NEW_YEAR + DAY)
LATE = (NEW_YEAR + 20 * DAY, NEW_YEAR + 40 * DAY)
ALWAYS = (NEW_YEAR - DAY, NEW_YEAR + 100 * DAY)

Row = dict[str, Any]
Span = tuple[datetime, datetime]
Read = Callable[[str, Span], tuple[list[Row], int | None]]
"""Reads the rows of a span of event times, and counts the planned files if the engine can."""


def record(shard: str, number: int, later: bool) -> Row:
    """The record that the n-th of a shard becomes; shard 0 has whole days, shard 1 midnights."""
    hours = {"0": 6 * number, "1": 5 * number + 2}[shard]
    days = 30 if number >= 12 else 0
    return {
        "shard_id": shard,
        "event_time": NEW_YEAR + HOUR * hours + DAY * days,
        "value": b"%s:%d" % (shard.encode(), number),
        "price": Decimal(number).scaleb(-2) if number % 3 else None,
        "nested": {"a": number, "texts": ["x", None]} if number % 4 else None,
        "local": (NEW_YEAR + HOUR * number).replace(tzinfo=None),
        "later": number + 0.5 if later else None,
    }


def transformed(rows: pa.RecordBatch, later: bool) -> pa.RecordBatch:
    """Rows with the columns of `record`, as a transform of the stream makes them."""
    values = [value.split(b":") for value in rows.column("value").to_pylist()]
    records = [record(shard.decode(), int(number), later) for shard, number in values]
    types = {
        "event_time": pa.timestamp("us", tz="UTC"),
        "price": pa.decimal128(10, 2),
        "nested": NESTED,
        "local": pa.timestamp("us"),
    }
    if later:
        types["later"] = pa.float64()
    columns = {name: rows.column(name) for name in ("shard_id", "cursor", "value", "attributes")}
    for name, kind in types.items():
        columns[name] = pa.array([each[name] for each in records], kind)
    return pa.RecordBatch.from_pydict(columns)


class Table(Publishing):
    """The table, and the rows that it has to show."""

    def __init__(self, folder: Path, address: str) -> None:
        world = World(folder, records=0, elsewhere=output_place(address))
        super().__init__(folder, world=world)
        self.expected: dict[tuple[str, int], Row] = {}

    def make(self) -> str:
        """Consume, publish, replay and compact; return the location of the newest metadata."""
        self.consume(8)
        self.consume(4, later=True)
        replayer = Replayer(
            stream=self.world.stream,
            store=self.world.store,
            output_root=self.world.place,
            sweeper=self.world.sweeper,
            run="replay-1",
        )
        replayer.replay(self.world.ids[:1], ReplaySpan.parse(None, None))
        self.publish()
        self.expected |= {("0", n): record("0", n, True) for n in range(12)}
        compactor = Compactor(
            store=self.world.store,
            key=self.world.key,
            output_root=self.world.place,
            run="compact-1",
        )
        compactor.compact(self.world.ids[1:])
        self.publish()
        self.consume(4, later=True)
        return self.metadata_at()

    def consume(self, count: int, later: bool = False) -> None:
        self.world.sweeper.keeps = lambda rows: transformed(rows, later)
        for shard in self.world.ids:
            begin = int(self.world.log.bounds([shard])[shard].end)
            self.world.append(shard, count)
            new = {(shard, n): record(shard, n, later) for n in range(begin, begin + count)}
            self.expected |= new
        self.world.consume(f"run-{len(self.expected)}")
        self.publish()

    def rows(self, span: Span) -> list[Row]:
        rows = self.expected.values()
        return ordered([row for row in rows if span[0] <= row["event_time"] < span[1]])

    def files(self) -> list[DataFile]:
        return [file for batch in self.store.each_batch(self.world.key) for file in batch.files]

    def leave_only(self, span: Span) -> int:
        """Remove the files that have no record in a span of time; return how many are left."""
        files = self.files()
        left = [file for file in files if overlaps(file, span)]
        for file in set(files) - set(left):
            (self.world.place / file.path).remove()
        return len(left)


def overlaps(file: DataFile, span: Span) -> bool:
    assert file.first_event_time is not None
    assert file.last_event_time is not None
    return file.first_event_time < span[1] and file.last_event_time >= span[0]


def ordered(rows: list[Row]) -> list[Row]:
    """Rows in one order and one form, whichever way an engine gives them."""
    for row in rows:
        row["value"] = bytes(row["value"])
        if row["event_time"].tzinfo is None:
            row["event_time"] = row["event_time"].replace(tzinfo=UTC)
        row["event_time"] = row["event_time"].astimezone(UTC)
    return sorted(({name: row[name] for name in COLUMNS} for row in rows), key=lambda r: r["value"])


COLUMNS = tuple(record("0", 0, False))


def text(span: Span) -> str:
    since, until = (each.isoformat() for each in span)
    return f"event_time >= '{since}' and event_time < '{until}'"


def pyiceberg(at: str, span: Span) -> tuple[list[Row], int | None]:
    scan = StaticTable.from_metadata(at, PYICEBERG).scan(row_filter=text(span))
    return scan.to_arrow().to_pylist(), len(list(scan.plan_files()))


def duckdb(at: str, span: Span) -> tuple[list[Row], int | None]:
    connection = duckdb_with_iceberg()
    query = f"FROM iceberg_scan('{at}') WHERE {text(span)}"
    rows = connection.execute(query).to_arrow_table().to_pylist()
    return rows, duckdb_files_read(at, text(span))


def polars(at: str, span: Span) -> tuple[list[Row], int | None]:
    time = pl.col("event_time")
    frame = polars_scan(at, PYICEBERG).filter(time >= span[0], time < span[1])
    return frame.collect().to_dicts(), None


@pytest.fixture(scope="module")
def spark_reader() -> Generator[SparkReader]:
    try:
        reader = SparkReader()
    except PackagesMissing as error:
        pytest.skip(f"Spark with Iceberg's runtime is not here: {error}")
    yield reader
    reader.stop()


@pytest.fixture
def read(request: pytest.FixtureRequest) -> Read:
    if request.param == "spark":
        reader = request.getfixturevalue("spark_reader")
        return lambda at, span: reader.rows(at, text(span))
    return {"pyiceberg": pyiceberg, "duckdb": duckdb, "polars": polars}[request.param]


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    if request.param == "disk":
        return Table(tmp_path, str(tmp_path / "output"))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    address = f"s3://{new_bucket()}/out"
    let_duckdb_into_the_store()
    return Table(tmp_path, address)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("read", "table"),
    [
        pytest.param("duckdb", "disk"),
        *(
            pytest.param(engine, place, marks=LONG)
            for engine, place in (
                ("pyiceberg", "disk"),
                ("polars", "disk"),
                ("spark", "disk"),
                ("pyiceberg", "s3"),
                ("duckdb", "s3"),
                ("polars", "s3"),
                ("spark", "s3"),
            )
        ),
    ],
    indirect=True,
)
def test_an_engine_reads_all_records_and_opens_only_files_that_match_the_filter(
    read: Read, table: Table
) -> None:
    at = table.make()
    rows, planned = read(at, ALWAYS)
    assert ordered(rows) == table.rows(ALWAYS)
    assert len(rows) == 32
    every = len(table.files())
    assert planned in (None, every)
    specs = StaticTable.from_metadata(at, PYICEBERG).inspect.files()["spec_id"].to_pylist()
    assert (set(specs), len(specs)) == ({1, 2}, every), "files in days, and across midnight"

    for span in (FIRST_DAY, LATE):
        rows, planned = read(at, span)
        assert ordered(rows) == table.rows(span)
        needed = sum(overlaps(file, span) for file in table.files())
        assert planned in (None, needed)
        assert 1 < needed < every

    assert table.leave_only(LATE) < every
    rows, _ = read(at, LATE)
    assert ordered(rows) == table.rows(LATE)
    with pytest.raises(Exception, match=r"(?i)parquet"):
        read(at, ALWAYS)


@LONG
def test_spark_opens_only_the_files_of_a_partition(
    spark_reader: SparkReader, tmp_path: Path
) -> None:
    """Goal: Spark agrees on the values of partitions, also on the buckets of texts and times."""
    scene = scene_of(
        tmp_path, partitioning=("user", "bucket(8, code)", "hour(event_time)"), sort_order=("n",)
    )
    scene.consume()
    for _ in range(2):
        scene.publish()
        rows, whole = spark_reader.rows(scene.metadata_at(), "true")
        assert len(rows) == 40
        for user in USERS:
            own = "user is null" if user is None else f"user = '{user}'"
            rows, files = spark_reader.rows(scene.metadata_at(), f"{own} and code = '00x'")
            assert {USERS[int(row["cursor"]) % 4] for row in rows} <= {user}
            assert (
                len(rows)
                == sum(USERS[number % 4] == user and number % 6 == 0 for number in range(20)) * 2
            )
            assert files < whole / 3
        scene.compact()


@LONG
def test_spark_reads_files_of_every_age_under_the_current_names(
    spark_reader: SparkReader, tmp_path: Path
) -> None:
    scene = EvolvingScene(tmp_path)
    scene.world.sweeper.keeps = lambda rows: rows.slice(0, 0)
    scene.world.consume("run-0")
    scene.consume(OLD)
    scene.evolve(renamed={"n": "m"}, removed=["price"])
    scene.consume(NEW)
    scene.consume(OLD | {"n": 3})
    scene.publish()
    for _ in range(2):
        rows, _ = spark_reader.rows(scene.metadata_at(), "m > 0")
        assert sorted(row["m"] for row in rows) == [1, 2, 3]
        assert sorted(row["nested"]["a"] for row in rows) == [1, 1, 2]
        assert not {"n", "price"} & {*rows[0]}
        scene.compact()
        scene.publish()
    scene.evolve(renamed={"m": "n"}, restored=["price"])
    rows, _ = spark_reader.rows(scene.metadata_at(), "n > 0")
    assert [(row["n"], row["price"]) for row in sorted(rows, key=lambda row: row["n"])] == [
        (1, 7), (2, None), (3, 7)
    ]  # fmt: skip
