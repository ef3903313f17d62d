"""Sensors that tick on after the wall clock of the daemon's host was set back.

Dagster's daemon leaves a sensor alone until its interval since the last tick is over, by the wall
clock: for as long as the clock was set back, no shard would get a new run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_leasehold.orchestration.presentation import say

if TYPE_CHECKING:
    from dagster import DagsterInstance

STEP_S = 1.0
"""A clock that is corrected slowly loses less than this between two looks, in seconds."""
UNDER_WAY_S = 90.0
"""A tick that was under way notes at its end when it began: longer than a tick may take."""


class SensorTicks:
    """A watch over the wall clock.

    Args:
        wall: the wall clock, in seconds.
        steady: a clock that nobody sets, in seconds.
        forget: makes Dagster forget the ticks that are later than a time of the wall clock.
    """

    def __init__(
        self,
        wall: Callable[[], float],
        steady: Callable[[], float],
        forget: Callable[[float], None],
    ) -> None:
        self._wall, self._steady, self._forget = wall, steady, forget
        self._ahead_s = wall() - steady()
        self._until_s: float | None = None

    def look(self) -> None:
        """Forget the ticks that are later than now, for a while after the clock was set back."""
        now_s = self._steady()
        ahead_s = self._wall() - now_s
        if ahead_s < self._ahead_s - STEP_S:
            say(
                f"The clock was set back by {self._ahead_s - ahead_s:.0f} s: sensors tick on, and "
                "dates of before are later than those of now."
            )
            self._until_s = now_s + UNDER_WAY_S
        self._ahead_s = ahead_s
        if self._until_s is None:
            return
        try:
            self._forget(self._wall())
        except Exception as error:
            # Whatever the storage's driver raises: the next look tries again.
            say(f"Ticks of sensors could not be forgotten: {error}")
            self._until_s = now_s + UNDER_WAY_S
        if now_s >= self._until_s:
            self._until_s = None


def forget_later_ticks(instance: DagsterInstance, now_s: float) -> None:
    """Forget the last ticks of sensors that came later than now: the clock was set back.

    Dagster's daemon leaves a sensor alone until its interval since then is over, which would be
    when the clock has caught up.
    """
    from dagster._core.scheduler.instigation import SensorInstigatorData

    for state in instance.all_instigator_state():
        data = state.instigator_data
        if not isinstance(data, SensorInstigatorData):
            continue
        ticks = (data.last_tick_timestamp or 0.0, data.last_tick_start_timestamp or 0.0)
        if max(ticks) > now_s:
            forgotten = data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None)
            instance.update_instigator_state(state.with_data(forgotten))
