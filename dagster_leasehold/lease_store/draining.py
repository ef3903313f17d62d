"""Draining a group: pause it, and wait until nothing of it is under way.

A closed tenure is the proof that a shard's checkpoint is durable: a run closes its tenures after
its last commit, and a client after it has saved its confirmed records. Why nothing opens again:

1. `open_tenure` locks the shard's row, and only then looks whether the group is paused.
2. The group is paused, and that is committed.
3. `draining` locks all rows of the group. A transaction that got a row before it is waited for and
   seen; one that gets a row after it finds the group paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class ShardDrain:
    """Work that is still under way on a shard.

    Attributes:
        check_point: the cursor up to which output is committed, durable.
        holder: the node that may consume it.
        run: the run that has it open; empty when none has.
        intent: a range that was intended and not committed. Without a run, a run left it
            that died: the next one reads the same range, under the same number.
    """

    shard: ShardId
    state: ShardState
    check_point: str | None
    holder: NodeName | None
    run: str
    intent: Batch | None

    @property
    def drained(self) -> bool:
        """True if no run is at work on it."""
        return not self.run


@dataclass(frozen=True, slots=True)
class Draining:
    """Work that is still under way in a group, all of one moment, by shard."""

    paused: bool
    shards: tuple[ShardDrain, ...]

    @property
    def open(self) -> tuple[ShardDrain, ...]:
        """The shards that a run is at work on."""
        return tuple(shard for shard in self.shards if not shard.drained)

    @property
    def drained(self) -> bool:
        """True if no run is at work, and none can begin."""
        return self.paused and not self.open


def draining_of(group: Group, shards: Iterable[ShardLease], intents: Iterable[Batch]) -> Draining:
    """Return the work under way that the rows of a group show."""
    intended = {batch.shard: batch for batch in intents if batch.state is BatchState.INTENT}
    rows = sorted(shards, key=lambda row: rank_key(row.shard))
    drains = (
        ShardDrain(
            shard=row.shard,
            state=row.state,
            check_point=row.check_point,
            holder=row.consumer_owner,
            run=row.consumer_run,
            intent=intended.get(row.shard),
        )
        for row in rows
    )
    return Draining(group.paused, tuple(drains))


def wait_until_drained(
    look: Callable[[], Draining],
    *,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    report: Callable[[Draining], None] = lambda _: None,
) -> Draining:
    """Look at a paused group until it is drained, is resumed, or the time is up.

    Args:
        look: reads the group's state: `Groups.draining` of the lease store.
        timeout_s: how long to look, in seconds; the group is looked at once at least.
        clock: monotonic seconds.
        sleep: waits, in seconds.
        report: is called with each state that differs from the one before.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    until = clock() + timeout_s
    seen: Draining | None = None
    while True:
        draining = look()
        if draining != seen:
            report(draining)
            seen = draining
        left_s = until - clock()
        if draining.drained or not draining.paused or left_s <= 0:
            return draining
        sleep(min(LOOK_EVERY_S, left_s))
