"""Planners that follow a group by its changes, and a store whose numbers appear out of order."""

from __future__ import annotations

from typing import Any

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_tail import JournalTail
from dagster_leasehold.lease_store.rebalancing import GroupMemory, Rebalancer
from tests.simulation.protocol import Parts
from tests.simulation.protocol.consumption import consume
from tests.simulation.protocol.seam import READ_TIMEOUT_S, StoreSeam

TENURES = frozenset({"open_tenure", "open_tenures", "close_tenure", "close_tenures"})
LATE = 0.8
NUMBERS_MAX = 500
"""More than one transaction of a simulated run writes."""


class LateNumbers(StoreSeam):
    """A transaction on tenures takes its journal numbers, and other transactions overtake it.

    Only entries of the same shard keep their order, because its row is locked.
    """

    def _take_effect(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        stage = self._stage
        if verb not in TENURES or stage.chance.random() >= LATE:
            return super()._take_effect(verb, args, options)
        numbers = stage.store._all
        taken = numbers.sequence
        numbers.sequence += NUMBERS_MAX
        stage.sleep(stage.chance.uniform(0.0, READ_TIMEOUT_S))
        newest = numbers.sequence
        journal = stage.store._groups[stage.key].journal
        if all(journal.newest(shard).sequence <= taken for shard in _shards(verb, args)):
            numbers.sequence = taken
        try:
            return super()._take_effect(verb, args, options)
        finally:
            numbers.sequence = max(numbers.sequence, newest)


def _shards(verb: str, args: tuple[Any, ...]) -> list[ShardId]:
    if verb.startswith("open"):
        return [args[1]] if verb == "open_tenure" else list(args[1])
    tenures = [args[0]] if verb == "close_tenure" else args[0]
    return [tenure.shard for tenure in tenures]


class FollowsAllGroups(Rebalancer):
    """Follows groups of any size, which usually takes more than a thousand shards."""

    follows = True

    def __init__(self, *args: Any, **options: Any) -> None:
        above = None if options.get("neighbour_only") else -1
        super().__init__(*args, **options | {"follows_above": above})


FOLLOWING = Parts(consume, rebalancer=FollowsAllGroups, seam=LateNumbers)


class _StrictTail(JournalTail):
    """Continues after the highest number that it has seen."""

    def _settle(self) -> int:
        if self._readings:
            self._settled = self._readings.pop()[1]
        return super()._settle()


class _StrictMemory(GroupMemory):
    def _new_tail(self) -> JournalTail:
        return _StrictTail(self.clock)

    def read_progress(self, serves, snapshot, *, after_changes=False):
        self._progress_at = self.clock()
        return super().read_progress(serves, snapshot, after_changes=after_changes)


class ReadsStrictlyByNumber(FollowsAllGroups):
    """A planner that takes an entry below the highest number for one that it has read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        own = self._memory
        self._memory = _StrictMemory(
            own.store, own.key, own.clock, own.count, own.large_above, own.stale_shards
        )
