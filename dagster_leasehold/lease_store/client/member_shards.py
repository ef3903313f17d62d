"""The shards of one member, opened and saved for as long as the member may rely on them."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from dagster_leasehold.lease_store.client.beat_trust import BeatTrust
from dagster_leasehold.lease_store.client.held_shards import HeldShards
from dagster_leasehold.lease_store.errors import LeaseLost, ShardNotOpen, StoreError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.membership import Membership
from dagster_leasehold.lease_store.outcomes import NotHeld, OpenByOther, Opened
from dagster_leasehold.lease_store.shard_rows import Tenure
from dagster_leasehold.lease_store.store import LeaseStore

FLUSH_RETRY_S = 0.5
LET_GO = "its client let go of it"


class MemberShards:
    """The shards that a member may work on; every call is safe from several threads.

    Args:
        member: the node that holds them.
        flush_s: the longest time that a checkpoint waits to be persisted, in seconds.
    """

    def __init__(self, store: LeaseStore, member: Membership, *, flush_s: float) -> None:
        self._store = store
        self._member = member
        self._beating = RLock()
        self._shards = HeldShards(store, member, flush_s=flush_s)
        self._trust = BeatTrust(member, self._shards, self._beating)

    @property
    def trusted(self) -> bool:
        """True if the member may rely on its leases: a recent beat was confirmed."""
        return self._trust.lasts

    @property
    def trusted_until(self) -> float:
        """The moment, on the clock given, at which trust ends unless a beat renews it."""
        return self._trust.until

    def open(self, shard: ShardId) -> Opened | OpenByOther | NotHeld:
        """Begin to work on a confirmed shard; the outcome says where to resume.

        `NotHeld` is a normal outcome: the shard went elsewhere since the heartbeat.
        """
        if not self.trusted:
            return NotHeld("untrusted", None)
        return self._shards.open(shard)

    def holds(self, shard: ShardId) -> bool:
        """Return True if the shard is open here, as far as can be told without the store."""
        return self.trusted and self._shards.holds(shard)

    def require(self, shard: ShardId, tenure: Tenure | None = None) -> None:
        """Make sure that the shard is open here, under `tenure` if one is given.

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
            CheckpointRefused: it lies before the one that is stored. The shard stays open, and
                its next save counts; to read records again, force the checkpoint.
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
        """Return the checkpoint of an open shard that the store confirmed, if any."""
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
        """Return the end of the gap at `start` whose loss somebody has accepted; else None."""
        gaps = self._store.gaps(self._member.key, shard, start=start, acknowledged=True)
        return gaps[0].end if gaps else None

    def announce(self, shard: ShardId, *, handoff_eta_s: float) -> None:
        """Publish how long the hand-over of an open shard will take, in seconds.

        Raises:
            LeaseLost, ShardNotOpen, StoreError: as for `save_checkpoint`.
        """
        self._shards.announce(shard, handoff_eta_s=handoff_eta_s)

    def finish(self, shard: ShardId, cursor: str) -> None:
        """Take note that a read-only shard was consumed up to its end: it is over for this group.

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

    def _release_all(
        self, lost: list[LeaseLost], *, within_s: float, pause: Callable[[float], None]
    ) -> StoreError | None:
        """Save and close what is open, with retries for some seconds.

        Losses are added to `lost`; the last failure is returned, or None. A tenure that is saved
        and could not be closed is ended by leaving, so that it needs no retry.
        """
        give_up_at = self._member.clock() + within_s
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
                if self._member.clock() >= give_up_at:
                    return failure
            if failure is None or not self._shards.unsaved():
                return failure
            pause(FLUSH_RETRY_S)
