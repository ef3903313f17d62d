"""The seam between a process and the store: every call takes time, and may get lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.errors import OutcomeUnknown, StoreUnavailable
from dagster_leasehold.simulation.schedule import Process

if TYPE_CHECKING:
    from dagster_leasehold.simulation.world import World

READS = frozenset(
    {"groups", "pulse", "snapshot", "progress", "review", "batches", "pending_events", "journal",
     "gaps", "waiting_events", "heads", "totals", "each_batch", "batches_within", "batches_since",
     "each_entry", "gap_counts", "throughput"}
)  # fmt: skip
CALL_S = 0.002
READ_TIMEOUT_S = 5.0
SECRET = "canary-of-the-simulated-password"
"""Stands where a driver's errors carry the credentials: nothing may ever repeat it."""


class DriverError(Exception):
    """What a driver raises: its text holds the whole address of the database."""

    def __init__(self) -> None:
        super().__init__(f"(2013, 'mysql://leasehold:{SECRET}@db/leasehold: lost connection')")


class StoreSeam:
    """One process's connection to the store; has the verbs of `LeaseStore`.

    Before a call takes effect, and before its reply arrives, any other process may run. A reply
    that is lost is reported after the read timeout: as unavailable where nothing can have
    changed, else as unknown.
    """

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb.startswith("_"):
            raise AttributeError(verb)

        def call(*args: Any, **options: Any) -> Any:
            return self._call(verb, args, options)

        setattr(self, verb, call)
        return call

    def _call(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        world = self._world
        world.count(verb)
        self._travel()
        if world.schedule.now < world.store_down_until:
            raise StoreUnavailable("The simulated store is down.") from DriverError()
        rates, chance = world.rates, world.schedule.chance
        if rates.lost_before and chance.random() < rates.lost_before:
            self._time_out()
            if verb in READS or chance.random() < 0.5:
                raise StoreUnavailable("The simulated request was lost.") from DriverError()
            raise OutcomeUnknown("The simulated request was lost.") from DriverError()
        outcome = self._take_effect(verb, args, options)
        if rates.lost_after and chance.random() < rates.lost_after:
            self._time_out()
            if verb in READS:
                raise StoreUnavailable("The simulated reply was lost.") from DriverError()
            raise OutcomeUnknown("The simulated reply was lost.") from DriverError()
        if rates.crash_before_reply and chance.random() < rates.crash_before_reply:
            world.incidents.kill(self._process)
        if rates.stalled_reply and chance.random() < rates.stalled_reply:
            world.incidents.stall(self._process)
        if rates.slow_call or rates.crash_before_reply or rates.stalled_reply:
            self._travel()
        return outcome

    def _take_effect(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        world = self._world
        outcome = getattr(world.store, verb)(*args, **options)
        if verb not in READS:
            world.watch.after(verb, self._process, args, options, outcome)
        return outcome

    def _travel(self) -> None:
        world = self._world
        rates, chance = world.rates, world.schedule.chance
        seconds = CALL_S * (0.5 + chance.random())
        if rates.instant_call and chance.random() < rates.instant_call:
            seconds = 0.0
        elif rates.slow_call and chance.random() < rates.slow_call:
            seconds = READ_TIMEOUT_S * chance.random()
        world.schedule.sleep(seconds * world.unit_s)

    def _time_out(self) -> None:
        self._world.schedule.sleep(READ_TIMEOUT_S * self._world.unit_s)
