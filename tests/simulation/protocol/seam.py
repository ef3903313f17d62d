"""The seam between a process and the store: every call takes time, and may get lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dagster_leasehold.lease_store.errors import OutcomeUnknown, StoreUnavailable
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import Stage

READS = frozenset(
    {"groups", "pulse", "snapshot", "progress", "review", "batches", "pending_events", "journal",
     "gaps", "waiting_events", "heads", "totals", "each_batch", "batches_since",
     "each_entry", "gap_counts", "throughput", "touched"}
)  # fmt: skip
CALL_S = 0.002
READ_TIMEOUT_S = 5.0
SECRET = "canary-of-the-simulated-password"
"""Stands where a driver's errors carry the credentials: nothing may ever repeat it."""


class Network(Protocol):
    """Everything that a connection may ask of the world, and bring about in it.

    Attributes:
        stage: the stage with the store on it.
    """

    stage: Stage

    def called(self, verb: str) -> None:
        """Take note of a call that is about to be made; events and faults come here."""
        ...

    def changed(self, verb: str, process: Process, args: tuple[Any, ...]) -> None:
        """Take note of a call that has taken effect."""
        ...

    def kill(self, process: Process) -> None:
        """Kill the calling process before it sees the reply."""
        ...

    def stall(self, process: Process) -> None:
        """Have the calling process stall before it sees the reply."""
        ...


class DriverError(Exception):
    """An error as a driver raises it: its text holds the whole address of the database."""

    def __init__(self) -> None:
        super().__init__(f"(2013, 'mysql://leasehold:{SECRET}@db/leasehold: lost connection')")


class StoreSeam:
    """The connection of one process to the store, with the operations of `LeaseStore`.

    Before a call takes effect, and before its reply arrives, any other process can run. A lost
    reply is reported after the read timeout: as unavailable if no row can have changed, otherwise
    as unknown.
    """

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._stage = network.stage
        self._process = process

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb.startswith("_"):
            raise AttributeError(verb)

        def call(*args: Any, **options: Any) -> Any:
            return self._call(verb, args, options)

        setattr(self, verb, call)
        return call

    def _call(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        stage = self._stage
        self._network.called(verb)
        self._travel()
        if stage.now < stage.store_down_until:
            raise StoreUnavailable("The simulated store is down.") from DriverError()
        rates, chance = stage.rates, stage.chance
        if rates.lost_before and chance.random() < rates.lost_before:
            self._time_out()
            if verb in READS or chance.random() < 0.5:
                raise StoreUnavailable("The simulated request was lost.") from DriverError()
            raise OutcomeUnknown("The simulated request was lost.") from DriverError()
        outcome = self._take_effect(verb, args, options)
        if verb not in READS:
            self._network.changed(verb, self._process, args)
        if rates.lost_after and chance.random() < rates.lost_after:
            self._time_out()
            if verb in READS:
                raise StoreUnavailable("The simulated reply was lost.") from DriverError()
            raise OutcomeUnknown("The simulated reply was lost.") from DriverError()
        if rates.crash_before_reply and chance.random() < rates.crash_before_reply:
            self._network.kill(self._process)
        if rates.stalled_reply and chance.random() < rates.stalled_reply:
            self._network.stall(self._process)
        if rates.slow_call or rates.crash_before_reply or rates.stalled_reply:
            self._travel()
        return outcome

    def _take_effect(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return getattr(self._stage.store, verb)(*args, **options)

    def _travel(self) -> None:
        rates, chance = self._stage.rates, self._stage.chance
        seconds = CALL_S * (0.5 + chance.random())
        if rates.instant_call and chance.random() < rates.instant_call:
            seconds = 0.0
        elif rates.slow_call and chance.random() < rates.slow_call:
            seconds = READ_TIMEOUT_S * chance.random()
        self._stage.sleep(seconds)

    def _time_out(self) -> None:
        self._stage.sleep(READ_TIMEOUT_S)
