"""The errors that several modules raise, with their messages."""

from __future__ import annotations

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import Tenure


def unknown_group(key: GroupKey) -> errors.UnknownGroup:
    """Return the error of an unknown group."""
    return errors.UnknownGroup(
        f"Stream {shown(key.stream)} has no consumer group {shown(key.group)}. Create it with "
        "`leasehold group create`."
    )


def unknown_shard(key: GroupKey, shard: ShardId) -> errors.UnknownShard:
    """Return the error of an unknown shard."""
    return errors.UnknownShard(
        f"Group {key} has no shard {shown(shard)}. `leasehold status` lists its shards."
    )


def name_taken(key: GroupKey, node: NodeName, note: str = "") -> errors.NodeNameTaken:
    """Return the error of a node name that another live process uses."""
    sentences = (
        f"Another live process answers to node {shown(node)} of group {key}. Stop it, or use "
        "another name."
    )
    return errors.NodeNameTaken(f"{sentences} {note}".rstrip())


def lease_lost(tenure: Tenure) -> errors.LeaseLost:
    """Return the error of a tenure that is over."""
    return errors.LeaseLost(
        f"Node {tenure.holder} no longer holds shard {tenure.shard} of group {tenure.key}: tenure "
        f"{tenure.epoch} is over and can no longer write."
    )


def checkpoint_behind(tenure: Tenure, cursor: str, check_point: str) -> errors.CheckpointRefused:
    """Return the error of a holder's checkpoint before the stored one."""
    return errors.CheckpointRefused(
        f"The checkpoint of shard {tenure.shard} of group {tenure.key} is {shown(check_point)} and "
        f"does not go back to {shown(cursor)}. To read records again, set it by force "
        "(`leasehold checkpoint set --force`)."
    )


def gap_held(key: GroupKey, shard: ShardId, start: str, end: str) -> errors.GapHeld:
    """Return the error of a group that holds at a gap."""
    return errors.GapHeld(
        f"The records from {start} to {end} of shard {shard} of {key} were removed before they "
        "were read, and the group holds at gaps. Accept the loss with `leasehold gap ack "
        f"{key.stream} {shard}`, or restore the log."
    )
