"""A sink that knows batches only by their ids: a repeated batch must be the same batch.

The next tenure repeats the intended range of a killed run, under the same id and with the same
bounds, although the log has grown and the limits have changed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport, StopReason
from dagster_leasehold.assets.consuming.spark_sweeper import SparkSweeper
from dagster_leasehold.assets.consuming.sweep import SweepOutcome, SweepResult
from dagster_leasehold.assets.guarding.run_on_spark import RunOnSpark
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.failpoints import Failpoint
from tests.integration.assets.runs import NODE, RECORDS, WAYS, store_of, stream_of
from tests.unit.assets.consumption_world import Beat

pytestmark = [pytest.mark.long, pytest.mark.spark]

POINTS = {
    "after_intent": "frames",
    "during_write": "arrow",
    "after_write": "frames",
    "before_commit": "arrow",
    "after_commit": "arrow",
}
"""Where the run is killed, and its kind of transform; the next run has the same kind."""
NEWER = 5


@dataclass
class KeyValueSink:
    """Sweeps with Spark, and writes each batch's records into a file named after the batch's id.

    It overwrites the file of that id, and cannot distinguish a repeated record from a new one.
    """

    sweeper: SparkSweeper
    home: Path

    def __call__(
        self, ranges: Sequence[ReadRange], numbers: Mapping[ShardId, range]
    ) -> Mapping[ShardId, SweepResult]:
        results = self.sweeper(ranges, numbers)
        key = stream_of(self.home).key
        intents = {b.shard: b for b in store_of(self.home).batches(key, state=BatchState.INTENT)}
        for shard, result in results.items():
            assert isinstance(result, SweepOutcome)
            rows = [pq.read_table(self.home / "output" / file.path) for file in result.files]
            values = [v.decode() for table in rows for v in table.column("value").to_pylist()]
            batch = intents[shard]
            put(self.home, batch.batch_id, [batch.start, batch.end, *values])
        return results


def put(home: Path, key: str, value: list[str]) -> None:
    folder = home / "sink"
    folder.mkdir(exist_ok=True)
    with (home / "puts").open("a") as log:
        log.write(json.dumps([key, *value[:2]]) + "\n")
    part = folder / f".{key}"
    part.write_text(json.dumps(value))
    part.rename(folder / key)


def consume(
    home: Path,
    spark_folder: Path,
    run: str,
    *,
    records_max: int,
    way: str,
    replaces: str | None = None,
) -> dict[ShardId, ConsumptionReport]:
    stream: ShardStream = replace(
        stream_of(home, WAYS[way]), limits=Limits(records_max=records_max)
    )
    store = store_of(home)
    shards = [lease.shard for lease in store.snapshot(stream.key).shards]
    sweeper = SparkSweeper(
        stream=stream,
        spark=RunOnSpark(
            session=lambda: SparkResource(mode="connect", folder=str(spark_folder)).spark_session,
            run=run,
            work="stream orders",
        ),
        output_root=local_place(home / "output"),
    )
    consumer = Consumer(
        stream=stream,
        store=store,
        node=NODE,
        run=run,
        sweeper=KeyValueSink(sweeper, home),
        heartbeat=Beat(),
        clock=time.monotonic,
        replaces=dict.fromkeys(shards, replaces) if replaces else None,
    )
    return consumer.consume(shards)


@pytest.mark.parametrize("point", POINTS)
def test_the_sink_holds_each_record_once(
    point: str, home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Method: SIGKILL at a named step; more records, smaller batches; the next tenure."""
    Failpoint[point.upper()].kills("-m", __name__, str(home), str(spark_folder), POINTS[point])
    stream, store = stream_of(home), store_of(home)
    intended = {
        (batch.shard, batch.sequence): (batch.start, batch.end)
        for state in (BatchState.INTENT, BatchState.COMMITTED)
        for batch in store.batches(stream.key, state=state)
    }
    assert set(intended.values()) == {("0", "12")}
    for listing in stream.source.list_shards():
        newer = [b"%s:%d" % (listing.shard.encode(), RECORDS + n) for n in range(NEWER)]
        stream.source.append(listing.shard, newer)

    reports = consume(
        home, spark_folder, "run-2", records_max=7, way=POINTS[point], replaces="run-1"
    )

    assert {report.stopped for report in reports.values()} == {StopReason.CAUGHT_UP}
    for shard in reports:
        ledger = store.batches(stream.key, shard)
        assert (ledger[0].start, ledger[0].end) == ("0", "12"), "not planned again"
        assert [batch.sequence for batch in ledger] == list(range(len(ledger)))
        held = [json.loads((home / "sink" / b.batch_id).read_text()) for b in ledger]
        assert [value[:2] for value in held] == [[b.start, b.end] for b in ledger]
        records = [text for value in held for text in value[2:]]
        assert records == [f"{shard}:{number}" for number in range(RECORDS + NEWER)]
    assert len(list((home / "sink").glob("[!.]*"))) == len(store.batches(stream.key))
    bounds: dict[str, set[tuple[str, str]]] = {}
    for line in (home / "puts").read_text().splitlines():
        batch_id, start, end = json.loads(line)
        bounds.setdefault(batch_id, set()).add((start, end))
    assert all(len(each) == 1 for each in bounds.values()), "one id, one range"
    assert verify(store, stream.key) == []


if __name__ == "__main__":
    consume(Path(sys.argv[1]), Path(sys.argv[2]), "run-1", records_max=12, way=sys.argv[3])
