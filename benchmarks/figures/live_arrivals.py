"""Single records that come to an idle deployment at random moments, and their ages at commit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.figures.live_deployment import LiveDeployment
from benchmarks.figures.live_records import age_figures
from benchmarks.local_log import values
from dagster_leasehold.lease_store.identifiers import ShardId

IDLE_LIMIT_S = 8.0
"""The time after which a run without records ends here: with the default it would take long."""
PAUSE_S = 5.0
"""The daemon looks every 5 s: a record may come at any moment between two looks."""
MARGIN_S = 4.0
"""The time beyond the commit interval within which a record is to be committed."""


class Arrivals:
    """Single records at random moments, one after the other.

    Args:
        deployment: at rest, with the idle limit of this module.
        interval_s: its commit interval, in seconds.
        count: the records of each situation.
        seed: of the moments and the shards.
    """

    def __init__(
        self, deployment: LiveDeployment, *, interval_s: float, count: int, seed: int
    ) -> None:
        self._deployment = deployment
        self._interval_s = interval_s
        self._count = count
        self._chance = random.Random(seed)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each situation in which a record finds the deployment."""
        ways: dict[str, Callable[[], list[float]]] = {
            "its run": self._to_a_run,
            "a run of other shards": self._beside_a_run,
            "no run": self._without_a_run,
        }
        return [self._row(situation, measure()) for situation, measure in ways.items()]

    def _row(self, situation: str, ages: list[float]) -> dict[str, Any]:
        limit_s = self._interval_s + MARGIN_S
        within = sum(age <= limit_s for age in ages)
        row = {"interval s": self._interval_s, "finds": situation, "records": len(ages)}
        return row | age_figures(ages) | {"limit s": limit_s, "within": within}

    def _to_a_run(self) -> list[float]:
        """Return the ages of records of shards that a run has open."""
        shards = self._of_a_node()
        for shard in shards:
            self._deployment.log.append(shard, values(1))
        self._deployment.catch_up()
        return [self._age(self._chance.choice(shards)) for _ in range(self._count)]

    def _beside_a_run(self) -> list[float]:
        """Return the ages of records of shards that a run of their node has not opened."""
        ages: list[float] = []
        while len(ages) < self._count:
            self._deployment.settle()
            first, *others = self._of_a_node()
            self._age(first)
            ages += [self._age(shard) for shard in others[: self._count - len(ages)]]
        return ages

    def _without_a_run(self) -> list[float]:
        """Return the ages of records that come when no run is alive."""
        ages: list[float] = []
        for _ in range(self._count):
            self._deployment.settle()
            ages.append(self._age(self._chance.choice(self._of_a_node())))
        return ages

    def _of_a_node(self) -> list[ShardId]:
        shards = self._chance.choice(self._deployment.shards_of_nodes())
        return self._chance.sample(shards, len(shards))

    def _age(self, shard: ShardId) -> float:
        time.sleep(self._chance.uniform(0, PAUSE_S))
        (record,) = values(1)
        return self._deployment.age_at_commit(shard, record)
