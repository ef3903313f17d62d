"""Growth: costs of a tick, memory of processes and history do not follow age (I12)."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.simulation.soak.findings import Figures, Findings
from tests.simulation.soak.memory_sizes import entries_of
from tests.simulation.soak.watched_store import Cost

if TYPE_CHECKING:
    from tests.simulation.soak.dagster_double import DagsterDouble
    from tests.simulation.soak.world import World

ROWS_BASE, ROWS_PER_SHARD, ROWS_PER_COMMIT = 250, 12, 12
CALLS_BASE, CALLS_PER_SHARD = 80, 4
ENTRIES_BASE, ENTRIES_PER_SHARD = 1_500, 80
HISTORY_LIMIT = timedelta(days=45)
"""Half as long again as history is kept: the janitor's rounds are hours apart."""
OLD_ENTRIES_MAX = 400
CURSOR_MAX = 60_000
WEEK_S = 7 * 86_400.0
MONTH_S = 30 * 86_400.0


class GrowthWatch:
    """Checks data that grows with shards and new commits, and must not grow with age."""

    def __init__(self, world: World, findings: Findings, figures: Figures) -> None:
        self._world = world
        self._findings = findings
        self._figures = figures
        self._commits_seen: dict[tuple[str, str], int] = {}
        self._commit_times: deque[float] = deque()

    def committed(self) -> None:
        """Count a batch that was committed now."""
        self._figures.commits += 1
        self._commit_times.append(self._world.time.now_s)

    def tick_cost(self, deployment: DagsterDouble, sensor: str, spent: Cost) -> None:
        """Check the store calls of one tick."""
        figures, find = self._figures, self._findings.find
        figures.ticked(int(self._world.time.now_s // MONTH_S), spent)
        seen = self._commits_seen.get((deployment.name, sensor), 0)
        self._commits_seen[deployment.name, sensor] = figures.commits
        news = figures.commits - seen
        shards = self._world.shards_ever
        if sensor in deployment.fresh:
            # A new code server reads the hours that late records can reach: those of a week.
            deployment.fresh.discard(sensor)
            news += self._of_a_week() + 7 * 24
        elif not news:
            figures.rows_max[sensor] = max(figures.rows_max[sensor], spent.rows)
            figures.calls_max[sensor] = max(figures.calls_max[sensor], spent.calls)
        if spent.rows > ROWS_BASE + ROWS_PER_SHARD * shards + ROWS_PER_COMMIT * news:
            find(
                ("rows", sensor),
                f"a tick of {sensor} read {spent.rows} rows of the lease store, with {news} "
                f"commits since the one before: its cost grows with the ledger's age",
            )
        if spent.calls > CALLS_BASE + CALLS_PER_SHARD * (shards + news):
            find(("calls", sensor), f"a tick of {sensor} called the store {spent.calls} times")

    def _of_a_week(self) -> int:
        """Count the batches that were committed within the last week."""
        since_s = self._world.time.now_s - WEEK_S
        while self._commit_times and self._commit_times[0] < since_s:
            self._commit_times.popleft()
        return len(self._commit_times)

    def look_at_sizes(self) -> None:
        """Check the memory of code servers between ticks, and their stored state."""
        limit = ENTRIES_BASE + ENTRIES_PER_SHARD * self._world.shards_ever
        for deployment in self._world.deployments:
            for name, sensor in deployment.sensors.items():
                entries = entries_of(sensor)
                self._figures.entries_max = max(self._figures.entries_max, entries)
                if entries > limit:
                    self._findings.find(("size", name), f"{name} keeps {entries} entries in memory")
                letters = len(deployment.cursors.get(name) or "")
                if letters > CURSOR_MAX:
                    self._findings.find(
                        ("cursor", name), f"the cursor of {name} has {letters} letters"
                    )

    def look_at_history(self) -> None:
        """Check shards that always fail: the janitor keeps their journals short."""
        world = self._world
        for name, key in world.keys.items():
            for shard in world.moods(name).failing if world.snapshot(key) else ():
                entries = world.store.store.journal(key, shard=shard, limit=OLD_ENTRIES_MAX + 1)
                old = [entry for entry in entries if world.now - entry.at > HISTORY_LIMIT]
                if len(old) > OLD_ENTRIES_MAX:
                    self._findings.find(
                        ("history", key), f"the journal of shard {shard} of {key} only grows"
                    )
