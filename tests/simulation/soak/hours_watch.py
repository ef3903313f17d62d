"""Hours: every complete one is made, and every late record is counted."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.rules.event_frontier import HOUR
from dagster_leasehold.lease_store.window_rows import EventWindow
from tests.simulation.soak.findings import Figures, Findings, Since

if TYPE_CHECKING:
    from tests.simulation.soak.dagster_double import DagsterDouble
    from tests.simulation.soak.world import World

HOUR_LIMIT_S = 3_600.0
HOUR_AGAIN_LIMIT_S = 7 * 3_600.0
"""For an hour whose run has failed before: it is requested again after up to 6 hours."""
WINDOWS_MAX = 24 * 30


class HoursWatch:
    """Checks the hours of the downstream asset.

    Attributes:
        next_hour: the first hour that was not computed.
        late_expected: the late records that each hour has to count.
        failed: hours whose last run failed, or is in progress.
    """

    def __init__(self, world: World, findings: Findings, figures: Figures) -> None:
        self._world = world
        self._findings = findings
        self._figures = figures
        self._since = Since()
        self._windows: dict[datetime, EventWindow] = {}
        self.next_hour = world.since
        self.late_expected: Counter[datetime] = Counter()
        self.failed: set[datetime] = set()

    def put(self, window: EventWindow) -> None:
        """Take the row of an hour as it was written."""
        self._windows[window.start] = window

    def made(self, hour: datetime) -> bool:
        """Return True if an hour has its row."""
        return hour < self.next_hour or hour in self._windows

    def late_of(self, hour: datetime) -> int:
        """Return the number of late records that were counted for an hour so far."""
        return self._windows[hour].late if hour in self._windows else 0

    def look(self) -> None:
        """Check the next hour and late records."""
        maker = next((each for each in self._world.deployments if each.hourly is not None), None)
        if maker is None:
            return
        while self.next_hour in self._windows:
            self._figures.hours += 1
            self.failed.discard(self.next_hour)
            self.next_hour += HOUR
        if len(self._windows) > WINDOWS_MAX:
            # All counted late records are within a week.
            old = self.next_hour - timedelta(days=14)
            self._windows = {at: row for at, row in self._windows.items() if at >= old}
        excused = self._look_at_next_hour(maker)
        for at, late in list(self.late_expected.items()):
            self._look_at_late(at, late, excused=excused)

    def _look_at_next_hour(self, maker: DagsterDouble) -> bool:
        """Check the next hour; return True if it need not be computed now."""
        assert maker.hourly is not None
        world, hour, name = self._world, self.next_hour, maker.hourly.stream.name
        excused = not maker.daemon_up or world.store.down or bool(world.logs[name].down)
        excused = excused or world.moods(name).failing_hours(hour)
        complete = world.frontier(name)
        due = not excused and complete is not None and hour + HOUR <= complete
        waited_s = self._since.held_s(("hour",), world.time.now_s, holds=due, state=hour)
        if waited_s > (HOUR_AGAIN_LIMIT_S if hour in self.failed else HOUR_LIMIT_S):
            words = world.watch.progress.last_words(name)[:100]
            self._findings.find(
                ("hour", hour),
                f"the hour {hour.isoformat()} has not moved for {waited_s:.0f} s: complete, and "
                f"not made; its sensor says: {words}",
            )
        return excused

    def _look_at_late(self, at: datetime, late: int, *, excused: bool) -> None:
        window = self._windows.get(at)
        counted = window is not None and window.late >= late and not window.rerun
        if counted:
            self._figures.late += late
            del self.late_expected[at]
        waiting = not counted and not excused
        waited_s = self._since.held_s(("late", at), self._world.time.now_s, holds=waiting)
        if waited_s > HOUR_AGAIN_LIMIT_S:
            self._findings.find(
                ("late", at),
                f"{late} late records of {at.isoformat()} were not counted, or the hour was "
                "not made again",
            )
