"""How long values have not changed, by the clock of one process."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Unchanged(Generic[K]):
    """Measures how long each key has had its current value.

    After a restart the time counts from 0, so a value counts as old later, never too early.
    """

    _since: dict[K, tuple[object, float]] = field(default_factory=dict[K, tuple[object, float]])

    def update(self, values: Mapping[K, object], now_s: float) -> dict[K, float]:
        """Record the current values; return for how many seconds each is unchanged.

        Other keys are dropped. `now_s` is in monotonic seconds.
        """
        before = self._since
        self._since = {
            key: before[key] if key in before and before[key][0] == value else (value, now_s)
            for key, value in values.items()
        }
        return {key: now_s - since_s for key, (_, since_s) in self._since.items()}
