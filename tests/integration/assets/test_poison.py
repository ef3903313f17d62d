"""A record at which the user's transform raises, hangs, kills its worker or uses all memory.

Runs follow one another, as in Dagster, over three shards. Only the first shard has such a record.
The others are committed meanwhile, and in the end all records except that one are committed.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.arrow_transform import arrow_transform
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.consuming.node_consumption import consume_shards
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.obstacles import ObstacleKind, obstacle
from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.isolation import OnPoison
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import Limits
from tests.integration.assets.runs import NODE, RECORDS, store_of, stream_of
from tests.ledger_output import ledger_records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param("arrow", marks=pytest.mark.long),
        pytest.param("frames", marks=pytest.mark.release),
    ],
)
"""The two kinds of transforms; the search for a record is the same code for both."""
POISON, AT = b"0:17", 17
STALL_LIMIT_S = 15.0
PATIENCE_S = 300.0
MEMORY_MAX = 1 << 31
SHARDS = [ShardId(shard) for shard in "012"]


def raises() -> None:
    raise ValueError("no such number")


def hangs() -> None:
    time.sleep(3_600)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits() -> None:
    os._exit(3)


def takes_all_memory() -> None:
    """Take memory without end, up to a limit of this process, as a container's would be."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    taken = []
    while True:
        taken.append(bytearray(1 << 26))


FAULTS = (raises, hangs, is_killed, exits, takes_all_memory)


def poisoned(fault: Callable[[], None], way: str) -> Any:
    """Return a transform that comes to harm at one record, in the way that streams go."""

    def fails_at(values: Any) -> None:
        if POISON in values.to_pylist():
            fault()

    def table(records: pa.Table) -> pa.Table:
        fails_at(records["value"])
        return records

    def frame(records: Any) -> Any:
        def each(batches: Any) -> Any:
            for batch in batches:
                fails_at(batch["value"])
                yield batch

        return records.mapInArrow(each, records.schema)

    return arrow_transform(table) if way == "arrow" else frame


class Runs:
    """The runs of one stream."""

    def __init__(self, home: Path, spark_folder: Path, stream: ShardStream) -> None:
        self.home, self.folder, self.stream = home, spark_folder, stream
        self.store = store_of(home)
        self.number = 0
        self.took_s: list[float] = []

    def run(self) -> dict[ShardId, ConsumptionReport]:
        self.number += 1
        began = time.monotonic()
        reports, _ = consume_shards(
            self.stream,
            Deployment(
                lambda: self.store, (NODE,), Timing(), lambda _: local_place(self.home / "output")
            ),
            spark=SparkResource(mode="connect", folder=str(self.folder)),
            node=NODE,
            incarnation="a-1",
            run=f"run-{self.number}",
            shards=SHARDS,
        )
        self.took_s.append(time.monotonic() - began)
        return {report.shard: report for report in reports}

    def until(self, reached: Callable[[], bool], runs_max: int) -> None:
        while not reached():
            assert self.number < runs_max
            self.run()

    def row(self, shard: str = "0") -> Any:
        return next(r for r in self.store.snapshot(self.stream.key).shards if r.shard == shard)

    def at_end(self) -> bool:
        return {self.row(shard).check_point for shard in SHARDS} == {str(RECORDS)}

    def committed(self, shard: str) -> list[bytes]:
        batches = ledger_records(
            self.store, self.stream.key, local_place(self.home / "output"), ShardId(shard)
        )
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    def expected(self, shard: str) -> list[bytes]:
        return [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)]


def runs_of(home: Path, spark_folder: Path, fault: Any, way: str, on_poison: OnPoison) -> Runs:
    """Runs whose Spark is at work already, since its slow start is no stall."""
    declared = replace(stream_of(home), on_poison=on_poison, limits=Limits(records_max=8))
    fixed = poisoned(functools.partial(int), way)
    runs = Runs(
        home, spark_folder, replace(declared, transform=fixed, pace=Pace(run_budget_s=1e-3))
    )
    runs.run()
    assert {runs.row(shard).check_point for shard in SHARDS} == {"8"}
    limit_s = STALL_LIMIT_S if fault is hangs else PATIENCE_S
    runs.stream = replace(
        declared, transform=poisoned(fault, way), pace=Pace(stall_limit_s=limit_s)
    )
    return runs


def check_one_record_is_found(home: Path, spark_folder: Path, fault: Any, way: str) -> None:
    runs = runs_of(home, spark_folder, fault, way, "quarantine")
    runs.run()
    runs.run()
    for shard in ("1", "2"):
        assert runs.committed(shard) == runs.expected(shard), "they wait for one stall at most"
    runs.until(runs.at_end, 16)
    assert runs.committed("0") == [value for value in runs.expected("0") if value != POISON]
    output = local_place(home / "output")
    [record] = quarantined_records(runs.store, runs.stream.key, output)
    assert (record.shard, record.cursor, record.value) == ("0", str(AT), POISON)
    assert record.error
    assert runs.row().suspicion is None
    assert verify(runs.store, runs.stream.key) == []


def test_a_record_that_kills_its_worker_is_found_and_quarantined(
    home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Goal: the whole search, in the suite of every change."""
    check_one_record_is_found(home, spark_folder, is_killed, "arrow")


@WAYS
@pytest.mark.parametrize(
    "fault",
    # What hangs takes two minutes, and the test below has it as well.
    [pytest.param(each, marks=pytest.mark.release) if each is hangs else each for each in FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_a_blocking_record_of_any_kind_is_found_and_quarantined(
    home: Path, spark_folder: Path, connect_session: Any, fault: Any, way: str
) -> None:
    check_one_record_is_found(home, spark_folder, fault, way)


@pytest.mark.release
@WAYS
def test_a_record_that_hangs_holds_its_shard_until_the_transform_is_fixed(
    home: Path, spark_folder: Path, connect_session: Any, way: str
) -> None:
    runs = runs_of(home, spark_folder, hangs, way, "hold")
    runs.until(lambda: bool(runs.row().suspicion and runs.row().suspicion.holds_shard), 16)
    assert runs.row().check_point == str(AT)
    report = runs.run()[ShardId("0")]
    assert report.stopped is StopReason.FAILED
    reason = obstacle(runs.stream.key, runs.row(), nodes={NODE: True})
    assert reason is not None
    assert reason.kind is ObstacleKind.RECORD
    assert f"Shard 0 of orders/default is held at cursor {AT}" in reason.sentence
    assert "This run made no progress for 15 s while it waited for Spark" in reason.sentence
    assert runs.committed("1") == runs.expected("1")
    fixed = poisoned(functools.partial(int), way)
    runs.stream = replace(runs.stream, transform=fixed)
    runs.until(runs.at_end, runs.number + 1)
    assert runs.committed("0") == runs.expected("0")
    assert verify(runs.store, runs.stream.key) == []
