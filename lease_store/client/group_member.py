"""A member of a consumer group: the heartbeat surface that any client can be built on.

A client repeats one call: `heartbeat(held)` names the shards that it works on, and the reply
names those that are its own. It opens what is new in the reply, goes on with what is in both,
and stops what is missing: as long as it still names such a shard it keeps it, so that it can
finish and save; once it does not, the shard goes to the next node.

A heartbeat is a tick of the same rebalancing that Dagster's sensors run: clients and Dagster's
nodes can be members of one group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from threading import RLock

from dagster_leasehold.lease_store.client.beat_trust import BeatTrust
from dagster_leasehold.lease_store.client.held_shards import HeldShards
from dagster_leasehold.lease_store.errors import (
    AssignmentConflict,
    CheckpointUnsaved,
    LeaseholdError,
    LeaseLost,
    NodeNameTaken,
    ShardNotOpen,
    StoreError,
)
from dagster_leasehold.lease_store.group_rows import BEAT_FRACTION_MAX, Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease, Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.tick_report import TickReport

FLUSH_DEFAULT_S = 5.0
FLUSH_RETRY_S = 0.5
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
        self._store = store
        self._key = key
        self._node = settings.name
        self._settings = replace(settings, incarnation=incarnation)
        self._clock = clock
        self._pause = pause
        self._shards = HeldShards(
            store, key, self._node, incarnation=incarnation, clock=clock, flush_s=flush_s
        )
        self._beating = RLock()
        self._rebalancer: Rebalancer | None = None
        self._report: TickReport | None = None
        self._beat_s = 0.0
        self._trust = BeatTrust(
            store,
            key,
            self._node,
            incarnation=incarnation,
            shards=self._shards,
            clock=clock,
            beating=self._beating,
        )

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
        return self._trust.lasts

    @property
    def trusted_until(self) -> float:
        """The moment, on the clock given, at which trust ends unless a beat renews it."""
        return self._trust.until

    @property
    def group(self) -> Group:
        """The group as the last heartbeat saw it."""
        return self._last().snapshot.group

    @property
    def members(self) -> tuple[Node, ...]:
        """The group's members as the last heartbeat saw them."""
        return tuple(row for row in self._last().snapshot.nodes if row.member)

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
            judged = self._shards.standing()
            started = self._clock()
            report = rebalancer.tick()
            self._report = report
            group = report.snapshot.group
            if not self._is_member(report):
                self._shards.end_all(f"Node {self._node} is no member of group {group.key} now.")
                self._trust.end()
                raise next(iter(self.refusals), self._expelled())
            self._beat_s = group.timeout_s * BEAT_FRACTION_MAX
            # Counted from before the beat was sent, and only where there was one.
            if report.statements["beat"] or report.statements["register"]:
                self._trust.renew(started, group.timeout_s)
            self._shards.compare(judged, report.progress)
            self._shards.flush_due()
            ended = self._shards.ended() & set(held)
            self._shards.let_go_of_unreported(held)
            return self._confirmed(report, ended)

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
            lost: list[LeaseLost] = self._shards.take_untold()
            cause = self._release_all(lost) if self._report is not None else None
            if unsaved := self._shards.unsaved():
                names = ", ".join(sorted(unsaved))
                raise CheckpointUnsaved(
                    f"Node {self._node} could not save the checkpoint of shard {names} of group "
                    f"{self._key}, so it has not left: shut it down again once the lease store "
                    f"answers, or the records since then are read again. {cause or ''}".rstrip()
                ) from cause
            if self._rebalancer is not None:
                self._rebalancer.leave()
                self._rebalancer = None
            self._trust.end()
            lost += self._shards.take_untold()
            if lost:
                raise lost[0]

    def _release_all(self, lost: list[LeaseLost]) -> StoreError | None:
        """Save and close what is open, with retries for the group's timeout.

        Losses are added to `lost`; the last failure is returned, or None. A tenure that is saved
        and could not be closed is ended by leaving, so that it needs no retry.
        """
        give_up_at = self._clock() + self.group.timeout_s
        while True:
            failure: StoreError | None = None
            for shard in self._shards.standing():
                try:
                    self._trust.confirm()
                    self._shards.release(shard, "its client shut down")
                except LeaseLost as error:
                    lost.append(error)
                except ShardNotOpen:
                    continue
                except StoreError as error:
                    failure = error
                if self._clock() >= give_up_at:
                    return failure
            if failure is None or not self._shards.unsaved():
                return failure
            self._pause(FLUSH_RETRY_S)

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
        """Nothing, where the shard is open here (under `tenure`).

        The store is asked only where no beat was confirmed in time.

        Raises:
            LeaseLost: the tenure is over; raised once, `ShardNotOpen` from then on.
            ShardNotOpen: the shard is not open here.
            StoreError: no beat was confirmed in time, nor now: nothing more may be read.
        """
        self._trust.confirm()
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
        # Remembered first: it is saved once the store says that the tenure goes on.
        self._shards.save(shard, cursor, persist=False, tenure=tenure)
        try:
            self._trust.confirm()
        except StoreError:
            if persist:
                raise
            return
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
        self._trust.confirm()
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
        self._trust.confirm()
        self._shards.finish(shard, cursor)

    def release(self, shard: ShardId) -> None:
        """Persist the checkpoint and end the tenure; one in transfer goes to the next node.

        A shard that the plan gives to this member stays its own, and can be opened again.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        self._trust.confirm()
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

    def _confirmed(self, report: TickReport, ended: Collection[ShardId]) -> tuple[ShardId, ...]:
        if report.snapshot.group.paused:
            return ()
        # One that its source lets nobody read stays assigned, and is given up until that changes.
        ready = {
            row.shard
            for row in report.snapshot.shards
            if row.state is ShardState.ALREADY_ALLOC and row.subscribable
        }
        return tuple(
            shard
            for shard in report.owned.get(self._node, ())
            if shard in ready and shard not in ended
        )
