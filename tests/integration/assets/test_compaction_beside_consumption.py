"""Many small batches end as files of the target size while consumption continues, on SQLite."""

from __future__ import annotations

import hashlib
import itertools
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.compact_job import build_compact_job
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.partitions import compact_op_name
from dagster_leasehold.assets.rewriting.merges import LARGE_ENOUGH
from dagster_leasehold.assets.shard_stream import Retention, ShardStream
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.source import Limits
from tests.ledger_output import ledger_paths, ledger_records
from tests.unit.assets.consumption_world import ArrowSweeper
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

SHARDS = (ShardId("0"), ShardId("1"))
RECORDS, PER_RUN, COMPACTIONS = 20, 100, 4
TARGET_BYTES = 16_000
"""A file of one batch has about 5,000 bytes, and 2,000 of them are overhead of Parquet."""


def stream_of(home: ConsumedHome) -> ShardStream:
    return ShardStream(
        str(KEY.stream),
        home.log,
        limits=Limits(records_max=RECORDS),
        retention=Retention(
            compact_target_bytes=TARGET_BYTES, compact_after_s=0.0, vacuum_after_s=60.0
        ),
    )


def value(shard: ShardId, number: int) -> bytes:
    """Return a record that cannot be made smaller."""
    return hashlib.shake_128(b"%s:%d" % (shard.encode(), number)).digest(150)


def append(home: ConsumedHome, begin: int, records: int) -> None:
    for shard in SHARDS:
        home.log.append(shard, [value(shard, begin + number) for number in range(records)])


def values(home: ConsumedHome, shard: ShardId) -> list[bytes]:
    return [
        row
        for part in ledger_records(home.store, KEY, home.place, shard)
        for row in part.column("value").to_pylist()
    ]


def compact(home: ConsumedHome, instance: dg.DagsterInstance) -> None:
    """Run the job as the sensor launches it."""
    deployment = Deployment(lambda: home.store, (NODE,), Timing(), lambda _: home.place)
    config = {"node": NODE, "shards": list(SHARDS), "vacuum": True}
    done = build_compact_job(home.stream).execute_in_process(
        instance=instance,
        resources={LEASEHOLD: deployment},
        run_config={"ops": {compact_op_name(home.stream): {"config": config}}},
    )
    assert done.success


def test_small_batches_are_merged_into_files_of_the_target_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a thread appends and commits batch by batch; compactions and readers run beside it.
    It appends once a compaction has seen that the first shard does not lag, or none may begin.

    Goal: at any moment a reader sees a whole prefix of each shard, and at the end all of it, in
    files of half the target and more, but for the last few.
    """
    home = ConsumedHome(tmp_path / "home", records_max=RECORDS)
    home.stream = stream_of(home)
    home.sweeper = ArrowSweeper(home.log, home.place)
    failures: list[BaseException] = []
    enough = threading.Event()
    committed, begun = threading.Semaphore(0), threading.Semaphore(1)
    claim = home.store.claim_rewrite

    def claim_and_say_so(*words: Any, **named: Any) -> Any:
        begun.release()
        return claim(*words, **named)

    monkeypatch.setattr(home.store, "claim_rewrite", claim_and_say_so)

    def consume() -> None:
        try:
            for number in itertools.count():
                assert begun.acquire(timeout=60.0)
                append(home, number * PER_RUN, PER_RUN)
                home.consume(f"run-{number}")
                committed.release()
                if enough.is_set():
                    return
        except BaseException as error:
            failures.append(error)
            raise

    live = threading.Thread(target=consume)
    live.start()
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(COMPACTIONS):
            assert committed.acquire(timeout=60.0), failures
            compact(home, instance)
            for shard in SHARDS:
                seen = values(home, shard)
                assert seen == [value(shard, number) for number in range(len(seen))]
        enough.set()
        begun.release()
        live.join()
        assert failures == []
        before = {shard: values(home, shard) for shard in SHARDS}
        # For a shard that lagged until now, the second one finds the files that need no more
        # merging.
        compact(home, instance)
        compact(home, instance)
    for shard in SHARDS:
        after = values(home, shard)
        assert after == before[shard]
        batches = home.store.heads(KEY)[shard].next_number
        assert len(after) == batches * RECORDS
        sizes = [path.stat().st_size for path in paths(home, shard)]
        small = [size for size in sizes if size < TARGET_BYTES * LARGE_ENOUGH]
        assert len(sizes) <= batches / 2
        assert len(small) <= 3, sizes
        progress = home.store.compacted(KEY)[shard]
        assert progress.examined_until == batches
        assert progress.until > 0
    assert home.store.rewrites(KEY) == []
    assert verify(home.store, KEY) == []
    home.store.close()


def paths(home: ConsumedHome, shard: ShardId) -> list[Path]:
    return [Path(path) for path in ledger_paths(home.store, KEY, home.place, shard)]
