"""Pure rules for the cursor where reading a shard begins."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_leasehold.lease_store.group_rows import AssignmentMode, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

BEGIN, END = "begin", "end"


def resumption(check_point: str | None, intent: Batch | None) -> str | None:
    """Return the cursor where a shard continues; None if it was never read.

    If a run died in its first batch, there is no checkpoint; its intent has the start.
    """
    return check_point if intent is None else intent.start


def first_position(initial_position: str, *, child: bool) -> str | None:
    """Return the position where an unread shard begins; None for its first record.

    A child of a split or merge starts at its first record ever, because its parents did not have
    its records. If retention removed some of them, they are a gap.
    """
    return None if child else initial_position


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The start of a shard at a bootstrap cursor; `readable` is the nearest cursor in the log.

    If the cursor is after the end of the log, the shard starts at the end, and an empty gap records
    that.
    """

    cursor: str
    readable: str

    @property
    def start(self) -> str:
        """The checkpoint that the shard is forced to."""
        return self.readable if is_before(self.readable, self.cursor) else self.cursor

    @property
    def gap(self) -> str:
        """The reason for the gap from `start` to `readable`; empty if the log has the cursor."""
        if self.readable == self.cursor:
            return ""
        return f"the log has no record at {self.cursor}: reading begins at {self.readable}"


def may_bootstrap(row: ShardLease, node: NodeName, cursor: str, run: str) -> bool:
    """Return True if a bootstrap cursor can be applied now: once, and without another run.

    1. Two runs of a node read a cursor that was not applied yet.
    2. The first run applies it, reads and commits.
    3. The second run must not apply it, or it would read the same records again.
    """
    holds = row.state is ShardState.ALREADY_ALLOC and row.consumer_owner == node
    return holds and row.consumer_run in ("", run) and row.bootstrap != cursor


def bootstrap_reason(node: NodeName, cursor: str, start: str | None) -> str:
    """Return the reason for a bootstrap; `start` is the end of the log, if earlier."""
    reason = f"the settings of {node} start it at {cursor}"
    return reason if start in (None, cursor) else f"{reason}, and the log ends at {start}"


def pending_bootstraps(snapshot: Snapshot) -> frozenset[ShardId]:
    """Return the shards whose bootstrap cursor was not applied yet."""
    if snapshot.group.assignment is not AssignmentMode.PINNED:
        return frozenset()
    pinned = {node.name: node.pinned or {} for node in snapshot.nodes}
    return frozenset(
        lease.shard
        for lease in snapshot.shards
        if lease.consumer_owner is not None
        and (cursor := pinned.get(lease.consumer_owner, {}).get(lease.shard)) is not None
        and cursor != lease.bootstrap
    )
