"""The sentences with which every store refuses, so that all of them say the same."""

from __future__ import annotations

from collections.abc import Iterable

from lease_store.errors import (
    CheckpointRefused,
    GroupExists,
    GroupInUse,
    GroupLimitReached,
    LeaseLost,
    UnknownGroup,
    UnknownShard,
    shown,
)
from lease_store.identifiers import GroupKey, NodeName, ShardId
from lease_store.records import Tenure


def unknown_group(key: GroupKey) -> UnknownGroup:
    """The group does not exist."""
    return UnknownGroup(
        f"Stream {shown(key.stream)} has no consumer group {shown(key.group)}: create it with "
        "`leasehold group create`."
    )


def unknown_shard(key: GroupKey, shard: ShardId) -> UnknownShard:
    """The group has no such shard."""
    return UnknownShard(
        f"Group {key} has no shard {shown(shard)}: see `leasehold status` for those it has."
    )


def group_exists(key: GroupKey) -> GroupExists:
    """The name is taken."""
    return GroupExists(
        f"Stream {shown(key.stream)} already has a consumer group {shown(key.group)}: choose "
        "another name, or update that one."
    )


def group_limit(key: GroupKey, siblings: int) -> GroupLimitReached:
    """The stream has no room for one more group."""
    return GroupLimitReached(
        f"Stream {shown(key.stream)} already has {siblings} consumer groups, the most allowed: "
        "delete one first."
    )


def group_in_use(key: GroupKey, members: Iterable[NodeName]) -> GroupInUse:
    """Somebody still consumes in the group."""
    return GroupInUse(
        f"Group {key} still has live nodes ({', '.join(sorted(members))}): stop them first, or "
        "delete it with --force."
    )


def shard_is_over(key: GroupKey, shard: ShardId) -> CheckpointRefused:
    """A checkpoint was to be set on a finished shard."""
    return CheckpointRefused(
        f"Shard {shown(shard)} of group {key} is finished: reopen it explicitly to read it again; "
        "shards that began after it are not read again."
    )


def lease_lost(tenure: Tenure) -> LeaseLost:
    """The tenure is over."""
    return LeaseLost(
        f"Node {tenure.holder} no longer holds shard {tenure.shard} of group {tenure.key}: tenure "
        f"{tenure.epoch} is over, so nothing more may be written under it."
    )


def gap_refused(tenure: Tenure, start: str, check_point: str | None) -> CheckpointRefused:
    """A gap that does not begin at the checkpoint."""
    return CheckpointRefused(
        f"A gap of shard {tenure.shard} of group {tenure.key} must begin at its checkpoint "
        f"{shown(check_point)}, not at {shown(start)}."
    )
