"""The janitor's rounds of deleting history: a little of it in each tick, a round every hour."""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.pruning import PruneRound
from dagster_leasehold.lease_store.rules.liveness import Clock

ROUND_EVERY_S = 3_600.0
STEPS_PER_TICK = 50
TICK_BUDGET_S = 1.0
"""After so much of a tick the rest of the round waits for the next one."""
FAILURES_SHOWN = 3


@dataclass(slots=True)
class HistoryRounds:
    """One group's rounds; remembers between ticks where a round stands.

    Attributes:
        key: the group.
        deployment: whose store and settings.
        clock: monotonic seconds.
    """

    key: GroupKey
    deployment: Deployment
    clock: Clock
    _round: PruneRound | None = None
    _next_s: float = field(default=float("-inf"))

    def tick(self) -> list[str]:
        """Do a part of a round if one is due; a line for each thing to tell when it is over.

        What the store refuses is told, and tried again an hour later: nothing waits for it.
        """
        age = self.deployment.history_age
        started_s = self.clock()
        if age is None or (self._round is None and started_s < self._next_s):
            return []
        try:
            round_ = self._round or PruneRound(self.deployment.store(), self.key, age)
        except StoreError as error:
            self._next_s = started_s + ROUND_EVERY_S
            return [str(error)]
        self._round = round_
        for _ in range(STEPS_PER_TICK):
            if round_.over or self.clock() - started_s > TICK_BUDGET_S:
                break
            round_.step()
        if not round_.over:
            return []
        self._round, self._next_s = None, self.clock() + ROUND_EVERY_S
        rows = round_.report.rows.total()
        lines = [f"deleted {rows:,} old rows of history"] if rows else []
        return lines + round_.report.failures[:FAILURES_SHOWN]
