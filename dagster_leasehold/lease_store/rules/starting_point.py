"""Where reading of a shard begins: pure rules that runs and plain clients share."""

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
    """Return where a shard continues; None if nothing of it was ever read.

    A run that died within its first batch has stored no checkpoint, but the start of its range.
    """
    return check_point if intent is None else intent.start


def first_position(initial_position: str, *, child: bool) -> str | None:
    """Return the position where a shard begins that was never read; None for its first record.

    A child of a split or merge starts at the first record that it ever had: records that a time or
    `end` would skip were not read under its parents either. What retention has removed of it is a
    gap, as it is behind any checkpoint.
    """
    return None if child else initial_position


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The beginning of a shard that is to start at a cursor.

    A cursor behind the end of the log is no place to wait at: the shard starts at the end, and its
    gap, which is there for people to see, holds no record.

    Attributes:
        cursor: the bootstrap cursor, as it was given.
        readable: the nearest cursor that the log can be read from.
    """

    cursor: str
    readable: str

    @property
    def start(self) -> str:
        """The checkpoint that the shard is forced to."""
        return self.readable if is_before(self.readable, self.cursor) else self.cursor

    @property
    def gap(self) -> str:
        """The reason of the gap from `start` to `readable`; empty where the log has the cursor."""
        if self.readable == self.cursor:
            return ""
        return f"the log has no record at {self.cursor}: reading begins at {self.readable}"


def may_bootstrap(row: ShardLease, node: NodeName, cursor: str, run: str) -> bool:
    """Return True if a bootstrap cursor takes effect now: once, and beside no other run.

    1. Two runs of a node see a cursor that has not been applied.
    2. The first applies it, reads and commits.
    3. The second must not go back, which would read the first one's records again.
    """
    holds = row.state is ShardState.ALREADY_ALLOC and row.consumer_owner == node
    return holds and row.consumer_run in ("", run) and row.bootstrap != cursor


def bootstrap_reason(node: NodeName, cursor: str, start: str | None) -> str:
    """Return the reason of a bootstrap for the journal; `start` is where it begins instead."""
    reason = f"the settings of {node} start it at {cursor}"
    return reason if start in (None, cursor) else f"{reason}, and the log ends at {start}"


def pending_bootstraps(snapshot: Snapshot) -> frozenset[ShardId]:
    """Return the shards that their holders pin at a cursor that has not taken effect yet."""
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
