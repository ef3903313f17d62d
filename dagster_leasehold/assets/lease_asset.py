"""The asset `leases/<stream>_leases`: a stream's nodes, shards and owners in the lease store.

Its check verifies the group's whole history, as `leasehold verify` does.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_leasehold.assets.deployment import LEASEHOLD, deployment_in
from dagster_leasehold.assets.log_asset import log_asset_key
from dagster_leasehold.assets.partitions import GROUP_NAME, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Node, Snapshot
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import GroupsAndLedger
from dagster_leasehold.shard_sources.lag import lags_of

JOURNAL_VERIFIED = "journal_verified"
TABLE_ROWS_MAX = 500
VIOLATIONS_SHOWN_MAX = 20
SHARD_LEASES = "loghub_client_shard_lease"
"""The database table that the asset describes."""


def lease_asset_key(stream: ShardStream) -> dg.AssetKey:
    """Return the key of the stream's lease table."""
    return dg.AssetKey([*stream.prefix, "leases", f"{stream.name}_leases"])


def build_lease_asset(stream: ShardStream) -> dg.AssetsDefinition:
    """Return the asset `leases/<stream>_leases`; materializing it only reads."""
    key = lease_asset_key(stream)
    spec = dg.AssetSpec(
        key,
        description=f"The nodes and shards of the consumer group of {stream.name}, and the owner "
        "of each shard, at the time of materialization.",
        kinds={"table"},
        group_name=GROUP_NAME,
        deps=[log_asset_key(stream)],
        metadata={"dagster/table_name": SHARD_LEASES},
    )
    check = dg.AssetCheckSpec(
        JOURNAL_VERIFIED,
        asset=key,
        description="According to journal and ledger, no tenures overlap, no child shard was "
        "consumed before its parents, and the batches have no gap and no overlap.",
    )

    @dg.multi_asset(
        name=f"leases__{definition_name(stream)}",
        specs=[spec],
        check_specs=[check],
        required_resource_keys={LEASEHOLD},
    )
    def lease_asset(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        try:
            store = deployment_in(context.resources).store()
            violations = [str(violation) for violation in verify(store, stream.key)]
            metadata = lease_metadata(stream, store)
        except LeaseholdError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        result = dg.AssetCheckResult(
            check_name=JOURNAL_VERIFIED,
            passed=not violations,
            metadata={
                "violations": len(violations),
                "first_violations": dg.MetadataValue.json(violations[:VIOLATIONS_SHOWN_MAX]),
            },
        )
        yield dg.MaterializeResult(asset_key=key, metadata=metadata, check_results=[result])

    return lease_asset


def lease_metadata(stream: ShardStream, store: GroupsAndLedger) -> dict[str, Any]:
    """Return the metadata of the asset: nodes and shards as tables, totals as numbers."""
    snapshot = store.snapshot(stream.key)
    lags = lags_of(stream.source, snapshot.shards).records
    counted = [lag for lag in lags.values() if lag is not None]
    complete = len(counted) == len(lags)
    shards = sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard))
    return {
        "nodes": dg.MetadataValue.table([_node_row(node, snapshot) for node in snapshot.nodes])
        if snapshot.nodes
        else "No node has joined yet.",
        "shards": dg.MetadataValue.table(
            [_shard_row(lease, lags.get(lease.shard)) for lease in shards[:TABLE_ROWS_MAX]]
        )
        if shards
        else "No shard has been listed yet.",
        "dagster/row_count": len(shards),
        "shard_count": len(shards),
        "node_count": sum(node.member for node in snapshot.nodes),
        "lag_known": complete,
        **({"lag": sum(counted)} if complete else {}),
        "records": sum(own.records for own in store.totals(stream.key)),
        "generation": snapshot.group.generation,
    }


def _node_row(node: Node, snapshot: Snapshot) -> dg.TableRecord:
    count = sum(lease.consumer_owner == node.name for lease in snapshot.shards)
    return dg.TableRecord(
        {
            "node": str(node.name),
            "member": node.member,
            "takes_runs": node.accepts_runs,
            "beats": node.lease_id,
            "shards": count,
        }
    )


def _shard_row(lease: ShardLease, lag: int | None) -> dg.TableRecord:
    """Show parents in the shard's column and the next owner in the owner's column.

    Their own columns would be empty most of the time, and the table would be too wide.
    """
    parents = f" ← {', '.join(lease.parents)}" if lease.parents else ""
    owner = str(lease.consumer_owner or "")
    if lease.lease_owner is not None and lease.lease_owner != lease.consumer_owner:
        owner = f"{owner} → {lease.lease_owner}"
    return dg.TableRecord(
        {
            "shard": f"{lease.shard}{parents}",
            "state": lease.state.value,
            "owner": owner,
            "checkpoint": lease.check_point or "",
            "lag": "unknown" if lag is None else str(lag),
            "epoch": lease.consumer_epoch,
        }
    )
