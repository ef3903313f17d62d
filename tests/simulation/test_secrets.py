"""I10: credentials in a driver's error are never repeated, and the search would find them."""

from __future__ import annotations

import logging

from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.rebalancing import Rebalancer, TickReport
from tests.simulation.protocol import Faults, Parts, SimulationConfig, run_seed
from tests.simulation.protocol.consumption import consume

SEEDS = 15


def heard(parts: Parts) -> list[str]:
    """Return the violations of the first seed that has any."""
    for seed in range(SEEDS):
        config = SimulationConfig(nodes=4, faults=Faults.SWARM, seed=seed, steps=500)
        violations = run_seed(config, seed, parts).violations
        if violations:
            return list(violations)
    return []


class RemembersTheCause(Rebalancer):
    """Keeps the driver's own words in the text that travels to the next tick."""

    _cause = ""

    def tick(self, remembered: str = "") -> TickReport:
        try:
            report = super().tick(remembered)
        except StoreError as error:
            self._cause = str(error.__cause__)
            raise
        if self._cause:
            self._notes.decide(f"the store failed before: {self._cause}")
            report = type(report)(
                **{
                    **{name: getattr(report, name) for name in report.__slots__},
                    "decisions": tuple(self._notes.decisions),
                }
            )
        return report


class LogsTheCause(Member):
    """Logs the driver's own words."""

    def beat(self) -> bool:
        inner, store = self.store, self.store

        class Logging:
            def beat(self, *args: object) -> object:
                try:
                    return store.beat(*args)
                except StoreError as error:
                    logging.getLogger("dagster_leasehold.lease_store.member").warning(
                        "%r", error.__cause__
                    )
                    raise

        self.store = Logging()  # pyright: ignore
        try:
            return super().beat()
        finally:
            self.store = inner


def test_the_search_finds_a_secret_in_an_explanation() -> None:
    violations = heard(Parts(consume, rebalancer=RemembersTheCause))
    assert violations[0].startswith("I10: a secret was said: ")
    assert "the store failed before" in violations[0]
    assert "canary" not in violations[0]


def test_the_search_finds_a_secret_in_a_log_line() -> None:
    assert heard(Parts(consume, heartbeat=LogsTheCause))[0].startswith("I10: ")


def test_no_secret_is_shown_under_the_same_seeds() -> None:
    assert heard(Parts(consume)) == []
