"""The invariants, checked after every call that may have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.group_rows import Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.rules.states import EDGES, ShardState
from dagster_leasehold.lease_store.rules.verification import check_history
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.simulation.schedule import Process
from dagster_leasehold.simulation.seam import SECRET

if TYPE_CHECKING:
    from dagster_leasehold.simulation.world import World

CLOSING = frozenset({"close_tenure", "commit", "finish_empty"})
FORCING = frozenset({"force_checkpoint", "bootstrap"})
MOVING = FORCING | {"commit", "save_checkpoint", "finish_empty", "record_gap"}
ROUNDING_S = 1e-6


class Watch:
    """Compares what each call left with what was there before it.

    It knows the rules, not the store's code: a store that breaks one is found, whatever it thinks
    of itself. Violations are sentences that begin with the invariant's number.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._shards: dict[ShardId, ShardLease] = {}
        self._nodes: dict[NodeName, Node] = {}
        self._left: set[tuple[NodeName, str]] = set()
        self._took_effect: set[tuple[ShardId, int, str, str, str]] = set()
        self._lost_until = 0.0
        self._repeated_until: dict[NodeName, int] = {}
        self._excused: set[tuple[NodeName, str]] = set()
        self.violations: list[str] = []
        self.moves = 0

    def violated(self, sentence: str) -> None:
        """Record a violation with the moment at which it was seen."""
        self.violations.append(
            f"{sentence} (at call {self._world.calls}, {self._world.schedule.now:.3f} s)"
        )

    def after(
        self,
        verb: str,
        process: Process,
        args: tuple[Any, ...],
        options: dict[str, Any],
        outcome: object,
    ) -> None:
        """A call took effect."""
        del options, outcome
        if verb == "beat":
            self._nodes |= {
                node.name: node for node in self._world.store.pulse(self._world.key).nodes
            }
            return
        snapshot = self._world.store.snapshot(self._world.key)
        self._compare_nodes(verb, snapshot)
        changed = False
        for lease in snapshot.shards:
            before = self._shards.get(lease.shard)
            if before is lease or before == lease:
                continue
            self._shards[lease.shard] = lease
            changed = self._compare(verb, process, args, before, lease, snapshot) or changed
        if changed:
            self._world.restart_rounds()

    def acknowledge(self, process: Process, commits: Sequence[BatchCommit]) -> None:
        """A run takes batches for committed: they must have become visible under its token."""
        for commit in commits:
            shard = commit.tenure.shard
            if commit.tenure.run != process.name:
                self.violated(f"I7: run {process.name} reports a batch of run {commit.tenure.run}")
            if _effect(commit) not in self._took_effect:
                self.violated(
                    f"I3: run {process.name} takes batch {shard}.{commit.sequence} for committed, "
                    "which it is not"
                )

    def said(self, *texts: str) -> None:
        """I10: a process has said something, in a log line, a report or a cursor."""
        for text in texts:
            if SECRET in text:
                self.violated(f"I10: a secret was said: {text.replace(SECRET, '***')[:200]}")

    def restored(self) -> None:
        """The store lost its last commits: start again from what it holds now."""
        snapshot = self._world.store.snapshot(self._world.key)
        self._shards = {lease.shard: lease for lease in snapshot.shards}
        # Counters repeat after such a loss, so that one of them may look as if it had stood still.
        for node in self._nodes.values():
            highest = max(node.lease_id, self._repeated_until.get(node.name, 0))
            self._repeated_until[node.name] = highest
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._lost_until = self._world.schedule.now + 2 * self._world.config.timeout_s
        self._world.restored()

    def check_history(self) -> None:
        """Everything that the journal, the ledger and the outbox show as a whole."""
        world = self._world
        snapshot = world.store.snapshot(world.key)
        batches = world.store.batches(world.key)
        journal = world.store.journal(world.key)
        gaps = world.store.gaps(world.key)
        ordered = snapshot.group.ordered
        for violation in check_history(snapshot.shards, journal, batches, gaps, ordered=ordered):
            self.violated(f"I3: {violation}")
        for written in (snapshot, batches, journal, gaps):
            self.said(str(written))
        committed = {batch.batch_id: batch for batch in batches}
        events = [event.batch_id for event in world.store.pending_events(world.key, limit=10**9)]
        if len(events) != len(set(events)):
            doubled = sorted({event for event in events if events.count(event) > 1})
            self.violated(f"I9: more than one event for the batches {', '.join(doubled)}")
        if missing := sorted(committed.keys() - events):
            self.violated(f"I9: no event for the batches {', '.join(missing)}")

    # -- nodes ----------------------------------------------------------------------------------

    def _compare_nodes(self, verb: str, snapshot: Snapshot) -> None:
        changed = False
        for node in snapshot.nodes:
            before = self._nodes.get(node.name)
            if before is node or before == node:
                continue
            self._nodes[node.name] = node
            if before is None or before.incarnation != node.incarnation:
                self._excused.discard((node.name, node.incarnation))
            if before is not None and node.lease_id < before.lease_id:
                self.violated(f"I1: the counter of {node.name} went back")
            if before is not None and before.member and before.incarnation != node.incarnation:
                self._check_distrusted(before, "left" if verb == "leave" else "pushed out")
            changed = changed or before is None or before.incarnation != node.incarnation
            changed = changed or before is None or before.accepts_runs != node.accepts_runs
        if changed:
            self._world.restart_rounds()

    def _check_distrusted(self, node: Node, how: str) -> None:
        """I4: whoever loses its node had stopped to trust itself before.

        Who leaves with no shard open had nothing that its trust was in: a run that opens one later
        is not its holder any more.
        """
        now = self._world.schedule.now
        member = (node.name, node.incarnation)
        if how == "left" and not any(
            lease.consumer_owner == node.name and lease.consumer_run
            for lease in self._shards.values()
        ):
            self._left.add(member)
        repeated = node.lease_id <= self._repeated_until.get(node.name, -1)
        if repeated or now < self._lost_until:
            self._excused.add(member)
        if member in self._left | self._excused:
            return
        # A node that leaves has let its runs end first; their windows mean nothing any more.
        trusts = self._world.trust_of(node.name, node.incarnation, ended=how != "left")
        for trusted_until in trusts:
            if trusted_until > now + ROUNDING_S:
                self.violated(
                    f"I4: {node.name} was {how} while it still trusted itself "
                    f"for {trusted_until - now:.3f} s"
                )

    def check_renewed(self, name: NodeName, incarnation: str) -> None:
        """I4: only the incarnation that answers to a name is renewed; asked after each beat.

        Who lost its place in the time that is excused beats once more before it knows.
        """
        node = self._nodes.get(name)
        if node is None or (name, incarnation) in self._excused:
            return
        if node.incarnation != incarnation:
            late = Node(name, node.lease_id, incarnation)
            self._check_distrusted(late, "renewed under another's name")

    # -- shards ---------------------------------------------------------------------------------

    def _compare(  # noqa: PLR0917
        self,
        verb: str,
        process: Process,
        args: tuple[Any, ...],
        before: ShardLease | None,
        after: ShardLease,
        snapshot: Snapshot,
    ) -> bool:
        """Check one row's change; whether the set of shards that count changed."""
        if before is None:
            self._check_start(after, snapshot)
            return True
        self._check_ownership(before, after)
        if after.check_point != before.check_point:
            self._check_checkpoint(verb, process, args, before, after)
        if (before.consumer_epoch, before.consumer_run) != (
            after.consumer_epoch,
            after.consumer_run,
        ):
            self._check_tenure(verb, process, args, before, after)
        owner = after.consumer_owner
        if owner is not None and owner != before.consumer_owner:
            self.moves += 1
            self._world.taken_over(after.shard, owner)
        if before.state is ShardState.WAIT and after.state is not ShardState.WAIT:
            self._check_start(after, snapshot)
        return before.state.consumable != after.state.consumable

    def _check_ownership(self, before: ShardLease, after: ShardLease) -> None:
        owners = (before.lease_owner, before.consumer_owner, before.state)
        steps = after.lease_id - before.lease_id
        if owners != (after.lease_owner, after.consumer_owner, after.state):
            freed = before.state is ShardState.WAIT
            if steps < (0 if freed else 1):
                self.violated(f"I1: shard {after.shard} changed its owner, but not its counter")
            known = before.state is after.state or (before.state, after.state) in EDGES
            if steps <= 1 and not known:
                self.violated(f"I1: shard {after.shard} went from {before.state} to {after.state}")
        elif steps < 0:
            self.violated(f"I1: the counter of shard {after.shard} went back")

    def _check_start(self, after: ShardLease, snapshot: Snapshot) -> None:
        """An ordered group frees no child before its parents are over."""
        if not snapshot.group.ordered or after.state in (ShardState.WAIT, ShardState.OVER):
            return
        states = {lease.shard: lease.state for lease in snapshot.shards}
        for parent in after.parents:
            if parent not in states and parent in after.gone_parents:
                continue
            if states.get(parent) is not ShardState.OVER:
                self.violated(f"order: shard {after.shard} is free, its parent {parent} not over")

    def _check_tenure(
        self,
        verb: str,
        process: Process,
        args: tuple[Any, ...],
        before: ShardLease,
        after: ShardLease,
    ) -> None:
        shard = after.shard
        if after.consumer_epoch < before.consumer_epoch:
            self.violated(f"I1: the epoch of shard {shard} went back")
        if after.consumer_run not in ("", before.consumer_run):
            if after.consumer_epoch <= before.consumer_epoch:
                self.violated(f"I7: epoch {after.consumer_epoch} of shard {shard} has two runs")
            node: object = args[2] if verb == "open_tenure" else None
            if node != after.consumer_owner or not _is_own(process, after.consumer_run):
                self.violated(
                    f"I2: {process.name} opened shard {shard} for {node}, "
                    f"but {after.consumer_owner} may consume it"
                )
        elif before.consumer_run and verb in CLOSING:
            self._check_token(self._tenure_of(verb, args, shard), before, "ended")

    def _check_checkpoint(
        self,
        verb: str,
        process: Process,
        args: tuple[Any, ...],
        before: ShardLease,
        after: ShardLease,
    ) -> None:
        shard = after.shard
        if verb not in MOVING:
            self.violated(f"I2: {verb} moved the checkpoint of shard {shard}")
        if verb == "bootstrap":
            self._check_bootstrap(process, args, before, after)
        if verb in FORCING:
            return
        self._check_token(self._tenure_of(verb, args, shard), before, "advanced")
        # A bootstrap cursor beyond the end is clamped: back to the end, with the gap on record.
        clamped = verb == "record_gap" and before.check_point == before.bootstrap
        if int(after.check_point or -1) < int(before.check_point or 0) and not clamped:
            self.violated(f"I2: the checkpoint of shard {shard} went back")
        if verb == "commit":
            self._check_commit(process, _commit_of(args, shard), before, after)
        elif not self._world.worked_through(process, shard, before.check_point, after.check_point):
            self.violated(
                f"I3: client {process.name} took the checkpoint of shard {shard} from "
                f"{before.check_point} to {after.check_point} past records that nobody processed"
            )

    def _check_bootstrap(
        self, process: Process, args: tuple[Any, ...], before: ShardLease, after: ShardLease
    ) -> None:
        """I2: a bootstrap cursor takes effect for the holder, once, and beside no other run."""
        shard, node, cursor = after.shard, args[2], args[3]
        if (after.check_point, after.bootstrap) != (cursor, cursor) or before.bootstrap == cursor:
            self.violated(f"I2: shard {shard} was started at {cursor} more than once, or elsewhere")
        if node != before.consumer_owner or before.consumer_run not in ("", process.name):
            self.violated(f"I2: {process.name} started shard {shard} under somebody else's feet")

    def _check_commit(
        self, process: Process, commit: BatchCommit, before: ShardLease, after: ShardLease
    ) -> None:
        """I3: what becomes visible is exactly what the attempt read, and it joins what was."""
        self._took_effect.add(_effect(commit))
        shard = after.shard
        if commit.tenure.run != process.name:
            self.violated(f"I7: {process.name} committed under the token of {commit.tenure.run}")
        if commit.start != (before.check_point or "0") or commit.end != after.check_point:
            self.violated(
                f"I3: [{commit.start}, {commit.end}) of shard {shard} took its checkpoint from "
                f"{before.check_point} to {after.check_point}"
            )
        for file in commit.files:
            if self._world.written.get(file.path) != (shard, commit.start, commit.end):
                self.violated(f"I3: a batch of shard {shard} lists a file of other records")

    def _check_token(self, tenure: Tenure, before: ShardLease, what: str) -> None:
        token = (before.consumer_owner, before.consumer_epoch, before.consumer_run)
        if (tenure.holder, tenure.epoch, tenure.run) != token:
            self.violated(
                f"I2: run {tenure.run} {what} shard {tenure.shard} with token {tenure.epoch} while "
                f"run {before.consumer_run or 'nobody'} had it with {before.consumer_epoch}"
            )

    def _tenure_of(self, verb: str, args: tuple[Any, ...], shard: ShardId) -> Tenure:
        if verb == "commit":
            return _commit_of(args, shard).tenure
        tenure = args[0]
        assert isinstance(tenure, Tenure)
        return tenure


def _is_own(process: Process, run: str) -> bool:
    """Whether a tenure's run is this process: a run has one name, a client numbers its tenures."""
    return run == process.name or run.startswith(f"{process.name}.")


def _commit_of(args: tuple[Any, ...], shard: ShardId) -> BatchCommit:
    commits: Sequence[BatchCommit] = args[0]
    return next(commit for commit in commits if commit.tenure.shard == shard)


def _effect(commit: BatchCommit) -> tuple[ShardId, int, str, str, str]:
    tenure = commit.tenure
    return tenure.shard, commit.sequence, tenure.run, commit.start, commit.end
