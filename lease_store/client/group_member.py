"""A member of a consumer group: the heartbeat surface that any client can be built on.

A client repeats one call: `heartbeat(held)` names the shards that it works on, and the reply
names those that are its own. It opens what is new in the reply, goes on with what is in both,
and stops what is missing: as long as it still names such a shard it keeps it, so that it can
finish and save; once it does not, the shard goes to the next node.

A heartbeat is a tick of the same rebalancing that Dagster's sensors run: clients and Dagster's
nodes can be members of one group.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from threading import RLock

from lease_store.client.held_shards import HeldShards
from lease_store.errors import (
    AssignmentConflict,
    LeaseholdError,
    LeaseLost,
    NodeNameTaken,
    StoreError,
)
from lease_store.identifiers import GroupKey, NodeName, ShardId
from lease_store.liveness import Clock, steady_clock
from lease_store.rebalancing import Rebalancer
from lease_store.records import (
    BEAT_FRACTION_MAX,
    TRUST_FRACTION,
    Group,
    Node,
    ShardLease,
    Tenure,
    Timing,
)
from lease_store.states import ShardState
from lease_store.store import LeaseStore, NotHeld, OpenByOther, Opened
from lease_store.tick_report import TickReport

FLUSH_DEFAULT_S = 5.0
LET_GO = "its client let go of it"


class GroupMember:
    """One node of a consumer group, driven by its caller; no thread of its own.

    `heartbeat` must be called at least every `beat_s` seconds. The calls are safe from several
    threads: usually one beats, and others work.

    Args:
        store: the lease store.
        key: the group.
        node: the member's name, or a row that carries its assignment settings and address too.
        incarnation: who answers to the name; new for every process, such as a random id.
        clock: monotonic seconds.
        flush_s: how long a checkpoint may wait in memory before a heartbeat persists it.
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
    ) -> None:
        settings = node if isinstance(node, Node) else Node(node, 0, "")
        self._store = store
        self._key = key
        self._node = settings.name
        self._settings = replace(settings, incarnation=incarnation)
        self._clock = clock
        self._shards = HeldShards(
            store, key, self._node, incarnation=incarnation, clock=clock, flush_s=flush_s
        )
        self._beating = RLock()
        self._rebalancer: Rebalancer | None = None
        self._report: TickReport | None = None
        self._beat_s = 0.0
        self._trusted_until = float("-inf")

    # -- membership -----------------------------------------------------------------------------

    @property
    def node(self) -> NodeName:
        """The member's name."""
        return self._node

    @property
    def beat_s(self) -> float:
        """The longest time between two heartbeats, in seconds: a third of the group's timeout."""
        return self._beat_s

    @property
    def trusted(self) -> bool:
        """Whether the member may rely on its leases: a recent beat was confirmed."""
        return self._clock() < self._trusted_until

    @property
    def trusted_until(self) -> float:
        """The moment, on the clock given, at which trust ends unless a beat renews it."""
        return self._trusted_until

    @property
    def group(self) -> Group:
        """The group as the last heartbeat saw it."""
        return self._last().snapshot.group

    @property
    def refusals(self) -> tuple[LeaseholdError, ...]:
        """What the last heartbeat found wrong with this member's assignment settings."""
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
                group = self._store.pulse(self._key).group
                self._beat_s = group.timeout_s * BEAT_FRACTION_MAX
                self._rebalancer = Rebalancer(
                    self._store,
                    self._key,
                    serves=(self._node,),
                    timing=Timing(group.timeout_s, self._beat_s),
                    clock=self._clock,
                    observer=str(self._node),
                    incarnation_of=lambda _: self._settings.incarnation,
                    settings={self._node: self._settings},
                )
            self.heartbeat(())
            # Two members that joined at the same moment may both have been let in.
            for error in self.refusals:
                if isinstance(error, AssignmentConflict):
                    self._rebalancer.leave()
                    raise error

    def offer(self, settings: Node) -> None:
        """Change the assignment settings; `register` or the next heartbeat sends them."""
        with self._beating:
            incarnation = self._settings.incarnation
            self._settings = replace(settings, name=self._node, incarnation=incarnation)
            if self._rebalancer is not None:
                self._rebalancer.offer(self._settings)

    @property
    def settings(self) -> Node:
        """The assignment settings that this member offers."""
        return self._settings

    def heartbeat(self, held: Collection[ShardId]) -> tuple[ShardId, ...]:
        """Beat, carry out what concerns this member, and learn which shards are its own.

        `held` names the shards that the caller works on. The reply names exactly those that are
        this member's and `already_alloc`. A shard that is named and not in the reply is to be
        stopped: it is on its way to another node, and stays here as long as it is named; or its
        tenure is over, and saving it raises `LeaseLost`. The reply is empty while the group is
        paused.

        Raises:
            NodeNameTaken, AssignmentConflict: the member lost its place and cannot join again.
            StoreError, UnknownGroup: the store does not answer, or has no such group any more.
        """
        with self._beating:
            rebalancer = self._joined()
            self._end_if_untrusted()
            judged = self._shards.standing()
            started = self._clock()
            report = rebalancer.tick()
            self._report = report
            group = report.snapshot.group
            if not self._is_member(report):
                self._shards.end_all(f"Node {self._node} is no member of group {group.key} now.")
                self._trusted_until = float("-inf")
                raise next(iter(self.refusals), self._expelled())
            self._beat_s = group.timeout_s * BEAT_FRACTION_MAX
            # Counted from before the beat was sent, and only where there was one.
            if report.statements["beat"] or report.statements["register"]:
                self._trusted_until = started + group.timeout_s * TRUST_FRACTION
            self._shards.compare(judged, report.progress)
            self._shards.flush_due()
            ended = self._shards.ended() & set(held)
            self._shards.let_go_of_unreported(held)
            return self._confirmed(report, ended)

    def shutdown(self) -> None:
        """Persist all checkpoints, let go of all shards and leave the group.

        Raises:
            LeaseLost: a shard was lost, and nobody had been told; all others have been saved.
            StoreError: the store does not answer; the shards are free after the group's timeout.
        """
        with self._beating:
            self._end_if_untrusted()
            problems: list[LeaseholdError] = list(self._shards.take_untold())
            for shard in list(self._shards.standing()):
                try:
                    self._shards.release(shard, "its client shut down")
                except (LeaseLost, StoreError) as error:
                    problems.append(error)
            if self._rebalancer is not None:
                self._rebalancer.leave()
                self._rebalancer = None
            self._trusted_until = float("-inf")
            if problems:
                raise problems[0]

    # -- shards ---------------------------------------------------------------------------------

    def open(self, shard: ShardId) -> Opened | OpenByOther | NotHeld:
        """Begin to work on a confirmed shard; says where to resume.

        `NotHeld` is a normal outcome: the shard went elsewhere since the heartbeat.
        """
        if not self.trusted:
            return NotHeld("untrusted", None)
        return self._shards.open(shard)

    def holds(self, shard: ShardId) -> bool:
        """Whether the shard is open here, as far as is known without asking the store."""
        return self.trusted and self._shards.holds(shard)

    def require(self, shard: ShardId, tenure: Tenure | None = None) -> None:
        """Nothing, where the shard is open here (under `tenure`); does not ask the store.

        Raises:
            LeaseLost: the tenure is over; raised once, `ShardNotOpen` from then on.
            ShardNotOpen: the shard is not open here.
        """
        self._end_if_untrusted()
        self._shards.require(shard, tenure)

    def save_checkpoint(
        self, shard: ShardId, cursor: str, *, persist: bool = False, tenure: Tenure | None = None
    ) -> None:
        """Set a shard's checkpoint: in memory, or in the store at once if `persist`.

        One in memory is persisted by the first heartbeat after `flush_s`, when the shard is let
        go of, and at shutdown. `tenure`, where given, must be the one that is open: it keeps a
        consumer that was replaced within this process from saving for its successor.

        Raises:
            LeaseLost: the tenure is over; raised once, `ShardNotOpen` from then on.
            ShardNotOpen: the shard is not open here.
            StoreError: it could not be persisted now; a later heartbeat tries again.
        """
        self._end_if_untrusted()
        self._shards.save(shard, cursor, persist=persist, tenure=tenure)

    def persisted(self, shard: ShardId) -> str | None:
        """The checkpoint of an open shard that the store is known to have."""
        return self._shards.persisted(shard)

    def record_gap(
        self, shard: ShardId, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record that `[start, end)` of an open shard cannot be read, and with `skip` pass it.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
            CheckpointRefused: the gap does not begin at the checkpoint.
        """
        self._end_if_untrusted()
        self._shards.record_gap(shard, start=start, end=end, reason=reason, skip=skip)

    def accepted_gap_end(self, shard: ShardId, start: str) -> str | None:
        """The end of the gap at `start` whose loss somebody has accepted; None where nobody has."""
        return self._shards.accepted_end(shard, start)

    def announce(self, shard: ShardId, *, handoff_eta_s: float) -> None:
        """Publish how long the hand-over of an open shard will take, in seconds.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        self._shards.announce(shard, handoff_eta_s=handoff_eta_s)

    def finish(self, shard: ShardId, cursor: str) -> None:
        """A read-only shard was consumed up to its end: it is over for this group.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        self._end_if_untrusted()
        self._shards.finish(shard, cursor)

    def release(self, shard: ShardId) -> None:
        """Persist the checkpoint and end the tenure; one in transfer goes to the next node.

        A shard that the plan gives to this member stays its own, and can be opened again.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        self._end_if_untrusted()
        self._shards.release(shard, LET_GO)

    def lease(self, shard: ShardId) -> ShardLease | None:
        """The shard's row as the last heartbeat saw it."""
        rows = self._last().snapshot.shards
        return next((row for row in rows if row.shard == shard), None)

    # -- inside ---------------------------------------------------------------------------------

    def _joined(self) -> Rebalancer:
        if self._rebalancer is None:
            raise RuntimeError("Register the member first.")
        return self._rebalancer

    def _last(self) -> TickReport:
        if self._report is None:
            raise RuntimeError("Register the member first.")
        return self._report

    def _expelled(self) -> NodeNameTaken:
        return NodeNameTaken(
            f"Node {self._node} lost its place in group {self._key} while it was joining: register "
            "it again."
        )

    def _is_member(self, report: TickReport) -> bool:
        return any(
            node.name == self._node and node.incarnation == self._settings.incarnation
            for node in report.snapshot.nodes
        )

    def _end_if_untrusted(self) -> None:
        """Give up all tenures once no beat was confirmed in time; a later beat cannot mend that.

        1. The last beat is confirmed; then the process stands still for longer than the timeout.
        2. Another node evicts it, takes its shards, reads on and saves.
        3. The process wakes in the middle of its work. It stops by its own clock, before it asks
           the store for anything; what the store would refuse is not even tried.
        """
        if self._trusted_until > float("-inf") and not self.trusted:
            self._shards.end_all(
                f"Node {self._node} had no beat confirmed in time, so it gave up its shards of "
                f"group {self._key}."
            )

    def _confirmed(self, report: TickReport, ended: Collection[ShardId]) -> tuple[ShardId, ...]:
        if report.snapshot.group.paused:
            return ()
        states = {row.shard: row.state for row in report.snapshot.shards}
        return tuple(
            shard
            for shard in report.owned.get(self._node, ())
            if states[shard] is ShardState.ALREADY_ALLOC and shard not in ended
        )
