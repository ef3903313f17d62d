"""A member of a consumer group: the heartbeat surface that any client can be built on.

A client repeats one call: `heartbeat(held)` names the shards that it works on, and the reply
names those that are its own. It opens shards that are new in the reply, goes on with those in both,
and stops missing ones: as long as it still names such a shard it keeps it, so that it can
finish and save; once it does not, the shard goes to the next node.

A heartbeat is a tick of the same rebalancing that Dagster's sensors run: clients and Dagster's
nodes can be members of one group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.client.held_shards import HeldShards
from dagster_leasehold.lease_store.group_rows import BEAT_FRACTION_MAX, Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from dagster_leasehold.lease_store.rules.lineage import why_waiting
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore

FLUSH_DEFAULT_S = 5.0
# Two heartbeats fit into one interval between beats, so that a change is noticed sooner; the
# beat itself, which writes a row, is due at every second one.
HEARTBEATS_PER_BEAT = 1 / 0.45


class GroupMember(HeldShards):
    """One node of a consumer group, driven by its caller; no thread of its own.

    `heartbeat` must be called at least every `beat_s` seconds. The calls are safe from several
    threads: usually one beats, and others work.

    Args:
        node: the member's name, or a row that carries its assignment settings and address too.
        incarnation: tells the process that answers to the name apart; new for every process, such
            as a random id.
        clock: monotonic seconds.
        flush_s: the longest time that a checkpoint waits in memory to be persisted, in seconds.
        pause: waits for some seconds between two tries to save, while the member shuts down.
    """

    def __init__(
        self,
        store: LeaseStore,
        key: GroupKey,
        node: NodeName | Node,
        *,
        incarnation: str,
        clock: Clock = steady_clock,
        flush_s: float = FLUSH_DEFAULT_S,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        settings = node if isinstance(node, Node) else Node(node, 0, "")
        member = Member(store, key, replace(settings, incarnation=incarnation), clock=clock)
        super().__init__(store, member, flush_s=flush_s)
        self._pause = pause
        self._rebalancer: Rebalancer | None = None
        self._report: TickReport | None = None

    @property
    def node(self) -> NodeName:
        """The member's name."""
        return self._member.node

    @property
    def beat_s(self) -> float:
        """The longest time between two heartbeats, in seconds: a third of the group's timeout."""
        return self._member.beat_s

    @property
    def group(self) -> Group:
        """The group as the last heartbeat saw it."""
        return self._last().snapshot.group

    @property
    def members(self) -> tuple[Node, ...]:
        """The group's members as the last heartbeat saw them."""
        return tuple(row for row in self._last().snapshot.nodes if row.member)

    @property
    def refusals(self) -> tuple[errors.LeaseholdError, ...]:
        """The errors that the last heartbeat found in this member's assignment settings."""
        if self._report is None:
            return ()
        return tuple(
            refusal.error for refusal in self._report.refusals if refusal.node == self.node
        )

    def register(self) -> None:
        """Join the group; the same call again, after a refusal, tries again.

        Raises:
            NodeNameTaken: another live process answers to the name.
            AssignmentConflict: the settings contradict another member's; the subclass says how.
            StoreError, UnknownGroup: the store does not answer, or has no such group.
        """
        with self._beating:
            if self._rebalancer is None:
                group = self._store.pulse(self._member.key).group
                self._member.beat_s = group.timeout_s * BEAT_FRACTION_MAX
                self._rebalancer = Rebalancer(
                    self._store,
                    self._member.key,
                    serves=(self.node,),
                    timing=Timing(group.timeout_s, self._member.beat_s),
                    clock=self._member.clock,
                    observer=str(self.node),
                    incarnation_of=lambda _: self._member.incarnation,
                    members=(self._member,),
                )
            self.heartbeat(())
            # Two members that joined at the same moment may both have been let in.
            for error in self.refusals:
                if isinstance(error, errors.AssignmentConflict):
                    self._rebalancer.leave()
                    raise error

    def offer(self, settings: Node) -> None:
        """Change the assignment settings; `register` or the next heartbeat sends them."""
        with self._beating:
            self._member.offer(settings)

    @property
    def settings(self) -> Node:
        """The assignment settings that this member offers."""
        return self._member.settings

    def heartbeat(self, held: Collection[ShardId]) -> tuple[ShardId, ...]:
        """Beat, carry out what concerns this member, and learn which shards are its own.

        `held` names the shards that the caller works on. The reply names exactly those that are
        this member's and `already_alloc`, and that the source lets it read. A shard that is named
        and not in the reply is to be stopped: it is on its way to another node, and stays here as
        long as it is named; or it cannot be read now; or its tenure is over, and saving it raises
        `LeaseLost`. The reply is empty while the group is paused.

        Raises:
            NodeNameTaken, AssignmentConflict: the member lost its place and cannot join again.
            StoreError, UnknownGroup: the store does not answer, or has no such group any more.
        """
        with self._beating:
            rebalancer = self._joined()
            judged = self._standing()
            started = self._member.clock()
            report = rebalancer.tick()
            self._report = report
            group = report.snapshot.group
            if not report.has_member(self.node, self._member.incarnation):
                self._end_all(f"Node {self.node} is no member of group {group.key} now.")
                expelled = errors.NodeNameTaken(
                    f"Node {self.node} lost its place in group {group.key} while it was joining: "
                    "register it again."
                )
                raise next(iter(self.refusals), expelled)
            self._member.beat_s = group.timeout_s * BEAT_FRACTION_MAX
            ended = self._after_beat(judged, report.progress, held) & set(held)
            # A beat that failed is a trouble of the tick alone: only a confirmed one renews trust.
            beaten_at = self._member.beaten_at
            if beaten_at is not None and beaten_at >= started:
                self._member.resume_trust()
            return tuple(shard for shard in report.ready(self.node) if shard not in ended)

    def start(self, heartbeat: Callable[[], None]) -> None:
        """Repeat a heartbeat on a thread, while the caller works, polls or sleeps."""
        self._member.start(heartbeat, per_beat=HEARTBEATS_PER_BEAT)

    def stop(self) -> None:
        """End that thread after its present heartbeat."""
        self._member.stop()

    @property
    def problem(self) -> errors.UserMistake | None:
        """The mistake that a heartbeat of the thread met, until the next one succeeds."""
        return self._member.problem

    def shutdown(self) -> None:
        """Persist all checkpoints, let go of all shards and leave the group.

        A checkpoint that cannot be persisted is tried again for as long as the group's timeout.
        Where that does not help either, the member does not leave: nobody is given a shard at a
        checkpoint that its reader had passed. It may be called again then; without that, the
        member's shards are free after the timeout, and what was not persisted is read again.

        Raises:
            LeaseLost: a shard was lost, and nobody had been told; all others have been saved.
            CheckpointUnsaved: a checkpoint is not persisted; the member has not left.
            StoreError: all is persisted, but the store did not let the member leave: its shards
                are free after the timeout.
        """
        with self._beating:
            lost: list[errors.LeaseLost] = self._take_untold()
            cause = None
            if self._report is not None:
                within_s = self.group.timeout_s
                cause = self._release_all(lost, within_s=within_s, pause=self._pause)
            if unsaved := self._unsaved():
                names = ", ".join(sorted(unsaved))
                raise errors.CheckpointUnsaved(
                    f"Node {self.node} could not save the checkpoint of shard {names} of group "
                    f"{self._member.key}, so it has not left: shut it down again once the lease "
                    "store answers, or the records since then are read again."
                    f"{f' {cause}' if cause else ''}"
                ) from cause
            if self._rebalancer is not None:
                self._rebalancer.leave()
                self._rebalancer = None
            self._member.end_trust("it has left the group")
            lost += self._take_untold()
            if lost:
                raise lost[0]

    def lease(self, shard: ShardId) -> ShardLease | None:
        """Return the shard's row as the last heartbeat saw it."""
        rows = self._last().snapshot.shards
        return next((row for row in rows if row.shard == shard), None)

    def why_waiting(self, lease: ShardLease) -> str:
        """Return what a waiting shard waits for and what to do, as the end of a sentence."""
        states: dict[str, ShardState] = {
            row.shard: row.state for row in self._last().snapshot.shards
        }
        return f"it {why_waiting(lease, states)}"

    def _joined(self) -> Rebalancer:
        if self._rebalancer is None:
            raise RuntimeError("Register the member first.")
        return self._rebalancer

    def _last(self) -> TickReport:
        if self._report is None:
            raise RuntimeError("Register the member first.")
        return self._report
