"""Kill a run at every step of a batch: the next one leaves each record once."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.consuming.following import Follow
from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from tests.failpoints import Failpoint
from tests.integration.assets.runs import RECORDS, WAYS, consume, store_of, stream_of
from tests.ledger_output import ledger_files, ledger_records

pytestmark = [pytest.mark.long, pytest.mark.spark]

POINTS = (
    Failpoint.IN_OPEN_TENURE,
    Failpoint.AFTER_OPEN,
    Failpoint.IN_RECORD_INTENTS,
    Failpoint.AFTER_INTENT,
    Failpoint.DURING_WRITE,
    Failpoint.AFTER_WRITE,
    Failpoint.BEFORE_COMMIT,
    Failpoint.IN_COMMIT,
    Failpoint.AFTER_COMMIT,
    Failpoint.BEFORE_CLOSE,
    Failpoint.IN_CLOSE_TENURE,
    Failpoint.AFTER_CLOSE,
)


ENDS, FOLLOWS = "ends", "follows"
CASES = [
    *((point, "arrow", (ENDS, FOLLOWS)[number % 2]) for number, point in enumerate(POINTS)),
    (Failpoint.DURING_WRITE, "frames", FOLLOWS),
    (Failpoint.AFTER_WRITE, "frames", ENDS),
    (Failpoint.WHILE_WAITING, "arrow", FOLLOWS),
    (Failpoint.WHILE_WAITING, "frames", FOLLOWS),
]


@pytest.mark.parametrize(
    ("point", "way", "then"), CASES, ids=lambda case: getattr(case, "label", case)
)
def test_each_record_is_committed_once(
    point: Failpoint, way: str, then: str, home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Method: SIGKILL at a named step; then a run that knows the dead one to have ended.

    Either kind of run is killed: one that ends once all is read, and one that follows its shards.
    """
    point.kills("-m", __name__, str(home), str(spark_folder), way, then)
    reports = consume(home, spark_folder, "run-2", replaces="run-1", transform=WAYS[way])
    assert {report.stopped for report in reports.values()} == {StopReason.CAUGHT_UP}
    stream, store = stream_of(home), store_of(home)
    for shard in reports:
        batches = list(ledger_records(store, stream.key, home / "output", shard))
        values = pa.Table.from_batches(batches).column("value").to_pylist()
        assert values == [b"%s:%d" % (shard.encode(), n) for n in range(RECORDS)]
        ledger = store.batches(stream.key, shard)
        assert [(batch.start, batch.end) for batch in ledger] == [
            ("0", "12"),
            ("12", "24"),
            ("24", "30"),
        ]
    assert verify(store, stream.key) == []
    listed = {file.path.address for file in ledger_files(store, stream.key, home / "output")}
    assert listed <= {*(home / "output").rglob("*.parquet")}


def test_spark_reads_only_the_files_of_the_table(
    home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """Method: an orphan beside the output, such as a zombie leaves."""
    from dagster_leasehold.assets.output.committed_output import CommittedOutput
    from tests.ledger_output import ledger_paths

    stream, store = stream_of(home), store_of(home)
    output = CommittedOutput(store, stream.key, home / "output", stream.iceberg)
    empty = output.frame(connect_session, wait=True)
    assert (empty.count(), empty.columns[0]) == (0, "shard_id")
    consume(home, spark_folder, "run-1")
    [path, *_] = ledger_paths(store, stream.key, home / "output", ShardId("1"))
    orphan = Path(path).parent.parent / "orphan"
    orphan.mkdir()
    (orphan / "1.0.parquet").write_bytes(Path(path).read_bytes())
    frame = output.frame(connect_session, wait=True)
    assert frame.count() == 3 * RECORDS
    only = output.frame(connect_session, shards=[ShardId("1")])
    assert only.count() == RECORDS
    assert {row.shard_id for row in only.select("shard_id").distinct().collect()} == {"1"}


if __name__ == "__main__":
    follow = Follow(Pace(0.5, idle_limit_s=1.0), time.sleep) if sys.argv[4] == FOLLOWS else None
    way = WAYS[sys.argv[3]]
    consume(Path(sys.argv[1]), Path(sys.argv[2]), "run-1", transform=way, follow=follow)
