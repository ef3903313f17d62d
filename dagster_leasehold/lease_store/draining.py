"""Draining a group: pause it, and wait until no run has a shard open.

A closed tenure proves that a shard's checkpoint is durable: a run closes its tenures after its last
commit, and a client after it has saved its confirmed records. No shard is opened again, because:

1. `open_tenure` locks the shard's row, and only then checks if the group is paused.
2. The pause is committed.
3. `draining` locks all rows of the group. If another transaction locked a row first, `draining`
   waits, and reads the new tenure. A transaction that locks a row afterwards finds the group
   paused.
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

POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class ShardDrain:
    """Work in progress on a shard.

    Attributes:
        check_point: the cursor up to which output is committed.
        holder: the node that can consume it.
        run: the run that has it open; empty if none has.
        intent: a range with an intent and no commit. If no run has the shard open, the range is
            from a dead run, and the next run repeats it.
    """

    shard: ShardId
    state: ShardState
    check_point: str | None
    holder: NodeName | None
    run: str
    intent: Batch | None

    @property
    def drained(self) -> bool:
        """True if no run has it open."""
        return not self.run


@dataclass(frozen=True, slots=True)
class Draining:
    """Work in progress in a group at one moment, by shard."""

    paused: bool
    shards: tuple[ShardDrain, ...]

    @property
    def open(self) -> tuple[ShardDrain, ...]:
        """The shards that a run has open."""
        return tuple(shard for shard in self.shards if not shard.drained)

    @property
    def drained(self) -> bool:
        """True if no run has a shard open, and none can open one."""
        return self.paused and not self.open


def draining_of(group: Group, shards: Iterable[ShardLease], intents: Iterable[Batch]) -> Draining:
    """Return the work in progress of a group, from its rows."""
    open_intents = {batch.shard: batch for batch in intents if batch.state is BatchState.INTENT}
    rows = sorted(shards, key=lambda row: rank_key(row.shard))
    drains = (
        ShardDrain(
            shard=row.shard,
            state=row.state,
            check_point=row.check_point,
            holder=row.consumer_owner,
            run=row.consumer_run,
            intent=open_intents.get(row.shard),
        )
        for row in rows
    )
    return Draining(group.paused, tuple(drains))


def wait_until_drained(
    poll: Callable[[], Draining],
    *,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    report: Callable[[Draining], None] = lambda _: None,
) -> Draining:
    """Wait until a paused group is drained or resumed, or `timeout_s` has passed.

    Raises:
        UnknownGroup: there is no such group.
        StoreUnavailable: the store does not answer.
    """
    until = clock() + timeout_s
    previous: Draining | None = None
    while True:
        draining = poll()
        if draining != previous:
            report(draining)
            previous = draining
        remaining_s = until - clock()
        if draining.drained or not draining.paused or remaining_s <= 0:
            return draining
        sleep(min(POLL_S, remaining_s))
