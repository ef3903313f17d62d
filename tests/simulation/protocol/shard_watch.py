"""Invariants of shards: owners, order, tenures, checkpoints and commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.rules.states import EDGES, ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from tests.simulation.protocol.measures import Measures
from tests.simulation.protocol.ports import Members
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import Stage

OPENING = frozenset({"open_tenure", "open_tenures"})
CLOSING = frozenset({"close_tenure", "close_tenures", "commit", "finish_empty"})
FORCING = frozenset({"force_checkpoint", "bootstrap"})
MOVING = FORCING | {"commit", "save_checkpoint", "finish_empty", "record_gap"}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the store that has taken effect."""

    verb: str
    process: Process
    args: tuple[Any, ...]

    def commit_of(self, shard: ShardId) -> BatchCommit:
        """Return the batch that it committed for a shard."""
        commits: Sequence[BatchCommit] = self.args[0]
        return next(commit for commit in commits if commit.tenure.shard == shard)

    def tenure_of(self, shard: ShardId) -> Tenure:
        """Return the tenure that it was made under."""
        tenure: object = self.args[0]
        if self.verb == "commit":
            tenure = self.commit_of(shard).tenure
        elif self.verb == "close_tenures":
            tenures: Sequence[Tenure] = self.args[0]
            tenure = next(each for each in tenures if each.shard == shard)
        assert isinstance(tenure, Tenure)
        return tenure


class ShardWatch:
    """Compares the rows of shards with those of the call before."""

    def __init__(self, stage: Stage, members: Members, measures: Measures) -> None:
        self._stage = stage
        self._members = members
        self._measures = measures
        self._shards: dict[ShardId, ShardLease] = {}
        self._took_effect: set[tuple[ShardId, int, str, str, str]] = set()

    def works(self, node: NodeName) -> bool:
        """Return True if a node has a shard open."""
        return any(
            lease.consumer_owner == node and lease.consumer_run for lease in self._shards.values()
        )

    def restored(self, snapshot: Snapshot) -> None:
        """Take the rows that a store has which lost its last commits."""
        self._shards = {lease.shard: lease for lease in snapshot.shards}

    def compare(self, call: Call, snapshot: Snapshot) -> bool:
        """Check the rows after a call; return True if the set of shards that count has changed."""
        changed = False
        for lease in snapshot.shards:
            before = self._shards.get(lease.shard)
            if before is lease or before == lease:
                continue
            self._shards[lease.shard] = lease
            changed = self._changed(call, before, lease, snapshot) or changed
        return changed

    def acknowledge(self, process: Process, commits: Sequence[BatchCommit]) -> None:
        """Check that batches which a run takes for committed became visible under its token."""
        for commit in commits:
            shard, run = commit.tenure.shard, commit.tenure.run
            if run != process.name:
                self._stage.violated(f"I7: run {process.name} reports a batch of run {run}")
            if _effect(commit) not in self._took_effect:
                self._stage.violated(
                    f"I3: run {process.name} takes batch {shard}.{commit.sequence} for committed, "
                    "which it is not"
                )

    def _changed(
        self, call: Call, before: ShardLease | None, after: ShardLease, snapshot: Snapshot
    ) -> bool:
        if before is None:
            self._check_start(after, snapshot)
            return True
        self._check_ownership(before, after)
        if after.check_point != before.check_point:
            self._check_checkpoint(call, before, after)
        tenure = (after.consumer_epoch, after.consumer_run)
        if (before.consumer_epoch, before.consumer_run) != tenure:
            self._check_tenure(call, before, after)
        if after.consumer_owner not in (None, before.consumer_owner):
            self._measures.moved(after.shard)
        if before.state is ShardState.WAIT and after.state is not ShardState.WAIT:
            self._check_start(after, snapshot)
        return before.state.consumable != after.state.consumable

    # -- owners and order -----------------------------------------------------------------------

    def _check_ownership(self, before: ShardLease, after: ShardLease) -> None:
        shard = after.shard
        owners = (before.lease_owner, before.consumer_owner, before.state)
        steps = after.lease_id - before.lease_id
        if owners != (after.lease_owner, after.consumer_owner, after.state):
            freed = before.state is ShardState.WAIT
            if steps < (0 if freed else 1):
                self._stage.violated(f"I1: shard {shard} changed its owner, but not its counter")
            edge = before.state is after.state or (before.state, after.state) in EDGES
            if steps <= 1 and not edge:
                self._stage.violated(f"I1: shard {shard} went from {before.state} to {after.state}")
        elif steps < 0:
            self._stage.violated(f"I1: the counter of shard {shard} went back")

    def _check_start(self, after: ShardLease, snapshot: Snapshot) -> None:
        """Check that an ordered group frees no child before its parents are over."""
        if not snapshot.group.ordered or after.state in (ShardState.WAIT, ShardState.OVER):
            return
        states = {lease.shard: lease.state for lease in snapshot.shards}
        for parent in after.parents:
            if parent not in states and parent in after.gone_parents:
                continue
            if states.get(parent) is not ShardState.OVER:
                self._stage.violated(
                    f"order: shard {after.shard} is free, its parent {parent} not over"
                )

    # -- tenures --------------------------------------------------------------------------------

    def _check_tenure(self, call: Call, before: ShardLease, after: ShardLease) -> None:
        shard, process = after.shard, call.process
        if after.consumer_epoch < before.consumer_epoch:
            self._stage.violated(f"I1: the epoch of shard {shard} went back")
        if after.consumer_run not in ("", before.consumer_run):
            if after.consumer_epoch <= before.consumer_epoch:
                self._stage.violated(
                    f"I7: epoch {after.consumer_epoch} of shard {shard} has two runs"
                )
            node: object = call.args[2] if call.verb in OPENING else None
            if node != after.consumer_owner or not _is_own(process, after.consumer_run):
                self._stage.violated(
                    f"I2: {process.name} opened shard {shard} for {node}, "
                    f"but {after.consumer_owner} may consume it"
                )
        elif before.consumer_run and call.verb in CLOSING:
            self._check_token(call.tenure_of(shard), before, "ended")

    def _check_token(self, tenure: Tenure, before: ShardLease, deed: str) -> None:
        token = (before.consumer_owner, before.consumer_epoch, before.consumer_run)
        if (tenure.holder, tenure.epoch, tenure.run) != token:
            self._stage.violated(
                f"I2: run {tenure.run} {deed} shard {tenure.shard} with token {tenure.epoch} while "
                f"run {before.consumer_run or 'nobody'} had it with {before.consumer_epoch}"
            )

    # -- checkpoints ----------------------------------------------------------------------------

    def _check_checkpoint(self, call: Call, before: ShardLease, after: ShardLease) -> None:
        shard, process = after.shard, call.process
        if call.verb not in MOVING:
            self._stage.violated(f"I2: {call.verb} moved the checkpoint of shard {shard}")
        if call.verb == "bootstrap":
            self._check_bootstrap(call, before, after)
        if call.verb in FORCING:
            return
        self._check_token(call.tenure_of(shard), before, "advanced")
        if int(after.check_point or -1) < int(before.check_point or 0):
            self._stage.violated(f"I2: the checkpoint of shard {shard} went back")
        start, end = before.check_point, after.check_point
        if call.verb == "commit":
            self._check_commit(process, call.commit_of(shard), before, after)
        elif not self._members.worked_through(process, shard, start, end):
            self._stage.violated(
                f"I3: client {process.name} took the checkpoint of shard {shard} from "
                f"{start} to {end} past records that nobody processed"
            )

    def _check_bootstrap(self, call: Call, before: ShardLease, after: ShardLease) -> None:
        """I2: a bootstrap cursor takes effect for the holder, once, and beside no other run."""
        shard, run, (node, cursor) = after.shard, call.process.name, call.args[2:4]
        # A cursor beyond the end of the log starts the shard at that end.
        beyond = int(after.check_point or 0) > int(cursor)
        if beyond or after.bootstrap != cursor or before.bootstrap == cursor:
            self._stage.violated(
                f"I2: shard {shard} was started at {cursor} more than once, or elsewhere"
            )
        if node != before.consumer_owner or before.consumer_run not in ("", run):
            self._stage.violated(f"I2: {run} started shard {shard} under somebody else's feet")

    def _check_commit(
        self, process: Process, commit: BatchCommit, before: ShardLease, after: ShardLease
    ) -> None:
        """I3: a commit shows exactly the records that the attempt read, after the earlier ones."""
        self._took_effect.add(_effect(commit))
        shard, run = after.shard, commit.tenure.run
        if run != process.name:
            self._stage.violated(f"I7: {process.name} committed under the token of {run}")
        if commit.start != (before.check_point or "0") or commit.end != after.check_point:
            self._stage.violated(
                f"I3: [{commit.start}, {commit.end}) of shard {shard} took its checkpoint from "
                f"{before.check_point} to {after.check_point}"
            )
        for file in commit.files:
            if self._stage.written.get(file.path) != (shard, commit.start, commit.end):
                self._stage.violated(f"I3: a batch of shard {shard} lists a file of other records")


def _is_own(process: Process, run: str) -> bool:
    """Return True if a tenure's run is this process: a client numbers its tenures."""
    return run == process.name or run.startswith(f"{process.name}.")


def _effect(commit: BatchCommit) -> tuple[ShardId, int, str, str, str]:
    tenure = commit.tenure
    return tenure.shard, commit.sequence, tenure.run, commit.start, commit.end
