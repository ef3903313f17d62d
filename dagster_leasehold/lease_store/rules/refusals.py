"""Errors and their sentences, so that every store and every client refuses in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.shard_rows import Tenure

SHARDS_NAMED_MAX = 8


def unknown_group(key: GroupKey) -> errors.UnknownGroup:
    """Return the error of a group that does not exist."""
    return errors.UnknownGroup(
        f"Stream {shown(key.stream)} has no consumer group {shown(key.group)}: create it with "
        "`leasehold group create`."
    )


def unknown_shard(key: GroupKey, shard: ShardId) -> errors.UnknownShard:
    """Return the error of a shard that the group does not have."""
    return errors.UnknownShard(
        f"Group {key} has no shard {shown(shard)}: see `leasehold status` for those it has."
    )


def shard_never_listed(key: GroupKey, shard: ShardId) -> errors.UnknownShard:
    """Return the error of a shard that the table has, and an ordered group does not."""
    return errors.UnknownShard(
        f"The table has records of shard {shown(shard)}, which group {key} does not know, nor what "
        "it comes from: start the daemon, so that the source lists its shards, and then repeat "
        "this."
    )


def group_exists(key: GroupKey) -> errors.GroupExists:
    """Return the error of a group's name that is taken."""
    return errors.GroupExists(
        f"Stream {shown(key.stream)} already has a consumer group {shown(key.group)}: choose "
        "another name, or update that one."
    )


def group_limit(key: GroupKey, siblings: int) -> errors.GroupLimitReached:
    """Return the error of a stream that has no room for one more group."""
    return errors.GroupLimitReached(
        f"Stream {shown(key.stream)} already has {siblings} consumer groups, the most allowed: "
        "delete one first."
    )


def group_in_use(key: GroupKey, members: Iterable[NodeName]) -> errors.GroupInUse:
    """Return the error of a group that still has live nodes."""
    return errors.GroupInUse(
        f"Group {key} still has live nodes ({', '.join(sorted(members))}): stop them first, or "
        "delete it with --force."
    )


def children_consumed(
    key: GroupKey, shard: ShardId, children: Sequence[ShardId]
) -> errors.CheckpointRefused:
    """Return the error of reopening a shard whose children had been read."""
    named = ", ".join(children[:SHARDS_NAMED_MAX])
    more = len(children) - SHARDS_NAMED_MAX
    return errors.CheckpointRefused(
        f"Shard {shown(shard)} of group {key} is finished, and what began after it was read "
        f"already ({named}{f' and {more} more' if more > 0 else ''}): reopen it with cascade to "
        "read these again too, or with accept to read this one alone, out of order."
    )


def batch_divided(key: GroupKey, batch: Batch, cursor: str) -> errors.CheckpointRefused:
    """Return the error of a checkpoint within a batch, which is committed as a whole."""
    return errors.CheckpointRefused(
        f"{shown(cursor)} is inside batch {batch.batch_id} of group {key}, whose output is "
        f"committed as a whole: set the checkpoint to {shown(batch.start)}, where it starts, or "
        f"to {shown(batch.end)}, where it ends."
    )


def batch_border_inside_file(
    key: GroupKey, first: Batch, last: Batch, cursor: str
) -> errors.CheckpointRefused:
    """Return the error of a checkpoint between batches whose records are in one file."""
    return errors.CheckpointRefused(
        f"{shown(cursor)} is between batches {first.batch_id} and {last.batch_id} of group {key}, "
        f"whose output was merged into one file: set the checkpoint to {shown(first.start)}, where "
        f"the first of them starts, or to {shown(last.end)}, where the last one ends."
    )


def cursor_unordered(key: GroupKey, shard: ShardId, cursor: str) -> errors.CheckpointRefused:
    """Return the error of a cursor that cannot be compared with others of its shard."""
    return errors.CheckpointRefused(
        f"The cursor {shown(cursor)} of shard {shown(shard)} of group {key} cannot be ordered "
        "among others: use decimal numbers, separated by dots, that grow from record to record."
    )


def name_taken(key: GroupKey, node: NodeName, note: str = "") -> errors.NodeNameTaken:
    """Return the error of a name that another live process has; `note` is a further sentence."""
    sentence = (
        f"Another live process answers to node {shown(node)} of group {key}: stop it, or use "
        "another name."
    )
    return errors.NodeNameTaken(f"{sentence} {note}".rstrip())


def output_expired(
    key: GroupKey, shard: ShardId, cursor: str, begin: str
) -> errors.CheckpointRefused:
    """A checkpoint was to be set before committed output that has expired."""
    return errors.CheckpointRefused(
        f"Committed output of shard {shown(shard)} of group {key} begins at {shown(begin)}: what "
        f"lay before has expired, and would be committed a second time from {shown(cursor)} on. "
        f"Set the checkpoint to {shown(begin)} or behind it."
    )


def child_expired(key: GroupKey, shard: ShardId, child: ShardId) -> errors.CheckpointRefused:
    """Return the error of reading a shard from its beginning after its first output expired."""
    return errors.CheckpointRefused(
        f"Shard {shown(child)} of group {key} cannot be read again with shard {shown(shard)}: its "
        "first committed output has expired, and would be committed a second time. Reopen with "
        f"accept to read shard {shown(shard)} alone."
    )


def lease_lost(tenure: Tenure) -> errors.LeaseLost:
    """Return the error of a tenure that is over."""
    return errors.LeaseLost(
        f"Node {tenure.holder} no longer holds shard {tenure.shard} of group {tenure.key}: tenure "
        f"{tenure.epoch} is over, so nothing more can be written under it."
    )


def checkpoint_behind(tenure: Tenure, cursor: str, check_point: str) -> errors.CheckpointRefused:
    """Return the error of a holder's checkpoint before the one that is stored."""
    return errors.CheckpointRefused(
        f"The checkpoint of shard {tenure.shard} of group {tenure.key} is {shown(check_point)} and "
        f"does not go back to {shown(cursor)}: to read records again, set it by force "
        "(`leasehold checkpoint set --force`)."
    )


def gap_held(key: GroupKey, shard: ShardId, start: str, end: str) -> errors.GapHeld:
    """Return the error of a group that holds at a gap."""
    return errors.GapHeld(
        f"The records from {start} to {end} of shard {shard} of {key} were removed before they "
        "were read, and the group holds at gaps: accept the loss with `leasehold gap ack "
        f"{key.stream} {shard}`, or restore the log."
    )


def gap_refused(tenure: Tenure, start: str, check_point: str | None) -> errors.CheckpointRefused:
    """Return the error of a gap that does not begin at the checkpoint."""
    return errors.CheckpointRefused(
        f"A gap of shard {tenure.shard} of group {tenure.key} must begin at its checkpoint "
        f"{shown(check_point)}, not at {shown(start)}."
    )
