"""The seam between the code under soak and the lease store: it counts, watches, and goes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol

from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.group_rows import Snapshot
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.soak.virtual_time import Killed, Process, VirtualTime


class Watcher(Protocol):
    """Called after each operation took effect."""

    def after(
        self, verb: str, args: tuple[Any, ...], options: Mapping[str, Any], outcome: object
    ) -> None:
        """Take note of a verb that has returned."""
        ...


@dataclass
class Cost:
    """Calls of the store, and rows that it returned."""

    calls: int = 0
    rows: int = 0

    def since(self, before: Cost) -> Cost:
        """Return the difference to an earlier state."""
        return Cost(self.calls - before.calls, self.rows - before.rows)

    def copy(self) -> Cost:
        """Return the state now."""
        return Cost(self.calls, self.rows)


@dataclass
class WatchedStore:
    """A lease store that is unavailable until `down_until_s`, and counts its calls."""

    store: LeaseStore
    time: VirtualTime
    watcher: Watcher
    down_until_s: float = 0.0
    cost: Cost = field(default_factory=Cost)

    @property
    def down(self) -> bool:
        """True if the store is unavailable now."""
        return self.time.now_s < self.down_until_s

    def connect(self, process: Process | None = None) -> Any:
        """Return a connection of one process, or of the code servers where none is given."""
        return _Connection(self, process)

    def call(self, process: Process | None, verb: str, args: tuple[Any, ...], options: Any) -> Any:
        if process is not None and process.dead:
            raise Killed
        if self.down:
            raise StoreUnavailable("The lease store is away: see that its database runs.")
        self.cost.calls += 1
        outcome = getattr(self.store, verb)(*args, **options)
        self.watcher.after(verb, args, options, outcome)
        if isinstance(outcome, Iterator):
            return self._counted(outcome)
        self.cost.rows += _rows(outcome)
        return outcome

    def _counted(self, rows: Iterator[Any]) -> Iterator[Any]:
        for row in rows:
            self.cost.rows += 1
            yield row


def _rows(outcome: object) -> int:
    if isinstance(outcome, Snapshot):
        return len(outcome.shards) + len(outcome.nodes)
    return len(outcome) if isinstance(outcome, Sized) else 1


class _Connection:
    def __init__(self, watched: WatchedStore, process: Process | None) -> None:
        self._watched = watched
        self._process = process

    def __getattr__(self, verb: str) -> Any:
        target = getattr(self._watched.store, verb)
        if not callable(target):
            return target
        call: Callable[..., Any] = lambda *args, **options: self._watched.call(  # noqa: E731
            self._process, verb, args, options
        )
        setattr(self, verb, call)
        return call
