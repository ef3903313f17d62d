"""The report at the end of a demo: the shards, the proof, and where the time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.store import GroupsAndLedger, LeaseStore
from dagster_leasehold.orchestration.demo.input import RecordDigest
from dagster_leasehold.orchestration.presentation import say, show_table

if TYPE_CHECKING:
    from pathlib import Path

    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.orchestration.settings import Settings
    from dagster_leasehold.shard_sources.source import ShardSource


def show_shards(store: GroupsAndLedger, key: GroupKey, source: ShardSource) -> None:
    """Show a table of the shards: state, owner, committed records, checkpoint and lag."""
    leases = sorted(store.snapshot(key).shards, key=lambda lease: rank_key(lease.shard))
    bounds = source.bounds([lease.shard for lease in leases])
    records = Counter[str]()
    number = Counter[str]()
    last_owner: dict[str, str] = {}
    for batch in store.each_batch(key):
        records[batch.shard] += batch.statistics.written + batch.statistics.quarantined
        number[batch.shard] += 1
        last_owner[batch.shard] = batch.holder
    show_table(
        f"Shards of {key}",
        "shard, parents, state, owner, >records, >batches, >epoch, >checkpoint, >lag",
        (
            (
                lease.shard,
                " + ".join(lease.parents),
                lease.state.value,
                lease.consumer_owner or f"({last_owner.get(lease.shard, 'none')})",
                records[lease.shard],
                number[lease.shard],
                lease.consumer_epoch,
                lease.check_point,
                source.lag(
                    lease.shard, lease.check_point or bounds[lease.shard].begin, bounds[lease.shard]
                ),
            )
            for lease in leases
        ),
    )


def committed_digest(store: LeaseStore, stream: ShardStream, settings: Settings) -> RecordDigest:
    """Return the digest of all committed records, read back from the stream's table."""
    from dagster_leasehold.assets.output.committed_output import iter_records

    digest = RecordDigest()
    key, catalog = stream.key, settings.catalog_settings
    output = settings.output_folder(key.stream, key.group)
    for batch in iter_records(store, key, output, wait=True, table=stream.table, catalog=catalog):
        digest.add(batch.column("value").to_pylist())
    return digest


def show_proof(loaded: RecordDigest, committed: RecordDigest, violations: list[str]) -> bool:
    """Compare the output with what was loaded; return True if it and the journal hold."""
    for violation in violations:
        say(f"VIOLATION: {violation}")
    if violations:
        say(f"Journal and ledger: {len(violations)} violations.")
    else:
        say(
            "Journal and ledger: no overlapping tenures, no gap, no overlap, parents before "
            "children."
        )
    numbers = f"{loaded.records:,} loaded, {committed.records:,} committed"
    same = loaded == committed
    if same:
        say(f"Records: {numbers}, each exactly once.")
    else:
        say(f"Records: {numbers}, which differ: {loaded} against {committed}.")
    return same and not violations


def show_runs(succeeded: int, failed: int, home: Path) -> None:
    """Say how the runs ended; one that failed cost time and lost nothing."""
    if failed:
        say(f"Runs: {succeeded} succeeded, {failed} failed (see {home}).")
    else:
        say(f"Runs: {succeeded} succeeded, 0 failed.")


def show_times(times: Mapping[str, float], total_s: float) -> None:
    """Say where the time went."""
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())
    say(f"Time: {total_s:.1f} s ({parts}).")
