"""The trust of a member in its shards: it lasts from a confirmed beat, and a beat renews it."""

from __future__ import annotations

from threading import RLock

from dagster_leasehold.lease_store.client.held_shards import HeldShards
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import TRUST_FRACTION
from dagster_leasehold.lease_store.membership import Membership


class BeatTrust:
    """The time until which one member may rely on its leases.

    Args:
        member: the one that trusts or does not.
        shards: the shards that it has open.
        beating: held while the member beats.
    """

    def __init__(self, member: Membership, shards: HeldShards, beating: RLock) -> None:
        self._member = member
        self._shards = shards
        self._beating = beating
        self._timeout_s = 0.0
        self._until = float("-inf")

    @property
    def lasts(self) -> bool:
        """True if a recent beat was confirmed."""
        return self._member.clock() < self._until

    @property
    def until(self) -> float:
        """The moment, on the clock given, at which trust ends; minus infinity where none began."""
        return self._until

    def renew(self, sent_at: float, timeout_s: float) -> None:
        """Begin anew with a confirmed beat that was sent at a moment, and with the group's T."""
        self._timeout_s = timeout_s
        self._until = sent_at + timeout_s * TRUST_FRACTION

    def end(self) -> None:
        """End: the member has no place in the group now."""
        self._until = float("-inf")

    def confirm(self) -> None:
        """Beat first where no beat was confirmed in time, and learn which tenures go on.

        1. The last beat is confirmed; then the process stands still for longer than its trust. By
           its own clock it stops: it reads, saves and opens nothing.
        2. A beat under its incarnation is confirmed. So nobody has evicted it, which takes the
           incarnation away; and from here an eviction needs the whole timeout again.
        3. After that it reads its shards' rows. One that has its epoch and run still was opened by
           nobody else since: every opening raises the epoch, and none ever falls. Nobody has read
           on from its checkpoint, so it goes on where it stood, under the same tenure.
        4. Had another node taken its shards and saved, 2 would be refused or 3 would differ: its
           tenures are over. Whatever comes after 3, each write names the tenure, and the store
           refuses it once that is over.

        Raises:
            StoreError: the store does not answer; nothing is trusted, and nothing is given up.
        """
        if self.lasts or self._until == float("-inf"):
            return
        with self._beating:
            if self.lasts:
                return
            judged = self._shards.standing()
            sent_at = self._member.clock()
            if not self._member.beat():
                self.end()
                self._shards.end_all(
                    f"Node {self._member.node} had no beat confirmed in time, and has lost its "
                    f"place and its shards in group {self._member.key}."
                )
                return
            progress = {row.shard: row for row in self._member.progress()}
            self._shards.compare(judged, progress)
            self.renew(sent_at, self._timeout_s)
        if not self.lasts:
            raise StoreUnavailable(
                "The lease store answers too slowly for the timeout of group "
                f"{self._member.key}: node {self._member.node} may not rely on its shards, and "
                "tries again."
            )
