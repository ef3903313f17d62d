"""Records of unusual sizes: one run over all of them, on real Spark, with bounded memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute
import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.assets.spark.connect_server import ConnectServer
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits
from tests.integration.assets.runs import NODE, WAYS, consume_stream, store_of, stream_of
from tests.ledger_output import ledger_records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ZERO, ONE, TWO = ShardId("0"), ShardId("1"), ShardId("2")
MIB = 2**20
LARGEST, TINY, PART, PARTS = 64 * MIB, 100_000, MIB, 20
BATCH_BYTES = 8 * MIB
RUNS = 3
PEAK_MIB_MAX = 3_500
"""The JVM's heap of 2 GiB and its other memory, its Python workers, and the driver."""


@dataclass
class Peak:
    """The most memory that the processes of a run held together, in bytes."""

    bytes: int = 0


def memory_held(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of processes in bytes; a page that several share counts once.

    Spark's workers are forked from one daemon, so the sum of their resident sizes is far too large.
    """
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


@contextmanager
def measured(server: int) -> Generator[Peak]:
    """Measure the memory of Spark's server and workers, and the additional memory of this
    process.
    """
    peak, done = Peak(), threading.Event()
    spark, driver = psutil.Process(server), psutil.Process()
    before = memory_held([driver])

    def watch() -> None:
        while not done.wait(0.2):
            held = memory_held([driver, spark, *spark.children(recursive=True)]) - before
            peak.bytes = max(peak.bytes, held)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


@pytest.mark.parametrize("way", ["arrow", pytest.param("frames", marks=pytest.mark.long)])
def test_a_run_consumes_records_of_hostile_sizes(
    way: str, home: Path, spark_folder: Path, connect_session: Any
) -> None:
    """A record of 64 MiB, a bound in bytes, 100,000 tiny records, none, and empty closed shards."""
    stream = replace(
        stream_of(home, WAYS[way]), limits=Limits(records_max=50_000, bytes_max=BATCH_BYTES)
    )
    log, store = stream.source, store_of(home)
    assert isinstance(log, LocalLog)
    # Shards 0, 1 and 2 hold a few records; 1 is split into two that stay empty, then merged.
    log.append(ZERO, [b"before", random.Random(1).randbytes(LARGEST), b"after"])
    log.append(TWO, [random.Random(n).randbytes(PART) for n in range(PARTS)])
    first, second = log.split(ONE)
    merged = log.merge(first, second)
    log.append(merged, [b"%d" % number for number in range(TINY)])
    empty_, tiny = [first, second], merged

    server = ConnectServer.read(spark_folder)
    assert server is not None
    with measured(server.pid) as peak:
        reports: dict[ShardId, Any] = {}
        for number in range(RUNS):  # a child is consumed in the run after its parents'
            store.sync_shards(stream.key, log.list_shards(), observer="test")
            leases = store.snapshot(stream.key).shards
            free = [lease for lease in leases if lease.state is ShardState.NOT_ALLOC]
            claims = {lease.shard: (NODE, lease.lease_id) for lease in free}
            store.claim(stream.key, claims, observer="test", reason="test")
            reports |= consume_stream(stream, home, spark_folder, f"run-{number}")

    states = {lease.shard: lease.state for lease in store.snapshot(stream.key).shards}
    assert [states[shard] for shard in empty_] == [ShardState.OVER] * 2
    assert store.batches(stream.key, first) == [], "an empty shard ends without a batch"
    counts = {shard: sizes(home, shard) for shard in (ZERO, TWO, tiny)}
    assert sorted(counts[ZERO])[-1] == LARGEST
    assert counts[TWO][-PARTS:] == [PART] * PARTS
    assert len(counts[tiny]) == TINY
    for batch in store.batches(stream.key):
        large = (batch.statistics.bytes or 0) > BATCH_BYTES
        assert not large or batch.statistics.records == 1, "only a record alone may be larger"
    stopped = {shard: reports[shard].stopped for shard in (ZERO, TWO, tiny)}
    assert set(stopped.values()) <= {StopReason.CAUGHT_UP, StopReason.NOT_HELD}, reports
    assert verify(store, stream.key) == []
    print(f"peak {peak.bytes / MIB:.0f} MiB")  # noqa: T201
    assert peak.bytes < PEAK_MIB_MAX * MIB


def sizes(home: Path, shard: ShardId) -> list[int]:
    """The sizes of a shard's committed values, in order."""
    pc: Any = pyarrow.compute
    store, key = store_of(home), stream_of(home).key
    batches = ledger_records(store, key, home / "output", shard)
    return [n for b in batches for n in pc.binary_length(b.column("value")).to_pylist()]
