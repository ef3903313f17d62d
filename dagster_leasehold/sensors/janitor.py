"""The step that cleans up after dead runs and deletes old history, in portions."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.output.attempts import touch_replaced
from dagster_leasehold.assets.output.folder_owner import owned
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.pruning import OutputExpiry, PruneRound
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.sensors import EVERY_THIRD_LOOP_S
from dagster_leasehold.sensors.run_cleaning import RunCleaning
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

ROUND_EVERY_S = 3_600.0
STEPS_PER_TICK = 50
TICK_BUDGET_S = 1.0
"""After this time, a tick leaves the rest of a round to the next tick, in seconds."""
FAILURES_SHOWN = 3


@dataclass(slots=True)
class HistoryRounds:
    """The hourly rounds of deletion for one group, and the state of the current round.

    Attributes:
        output_age: the age at which committed output expires; None keeps it.
    """

    key: GroupKey
    deployment: Deployment
    clock: Clock
    output_age: timedelta | None = None
    _round: PruneRound | None = None
    _next_s: float = field(default=float("-inf"))

    def tick(self) -> list[str]:
        """Run a part of the current or due round; return lines about it once it is over.

        If the store fails, the line is its error, and the next round starts an hour later.
        """
        age = self.deployment.history_age
        started_s = self.clock()
        nothing = age is None and self.output_age is None
        if nothing or (self._round is None and started_s < self._next_s):
            return []
        try:
            round_ = self._round or PruneRound(
                self.deployment.store(), self.key, age, self._output()
            )
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
        if expired := round_.report.expired:
            lines.append(f"deleted {expired:,} ledger rows of expired output")
        return lines + round_.report.failures[:FAILURES_SHOWN]

    def _output(self) -> OutputExpiry | None:
        if self.output_age is None:
            return None
        folder = owned(self.deployment.store(), self.deployment.output_folder(self.key))
        return OutputExpiry(self.output_age, partial(touch_replaced, folder))


def janitor_step(stream: ShardStream, deployment: Deployment, clock: Clock = steady_clock) -> Step:
    """Return the step `janitor`; `clock` returns monotonic seconds."""
    cleaning = RunCleaning(stream, deployment, clock, lambda: str(uuid.uuid4()))
    history = HistoryRounds(stream.key, deployment, clock, stream.retention.output_age)

    def work(tick: Tick) -> Outcome:
        notes = cleaning.clean(tick.runs) + history.tick()
        return Outcome("; ".join(notes) or "No run has died, and no run works without a lease.")

    return Step(stream, "janitor", work, EVERY_THIRD_LOOP_S)
