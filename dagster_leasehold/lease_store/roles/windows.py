"""The role for windows of event time: the ledger of what was made of committed output.

A window's output counts when its row names it, as a batch's does. Every write names the version
that it saw, so that of two runs of one window, or a run and a counter of late records, the second
one notices and looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.outcomes import Changed, Stale


@dataclass(frozen=True, slots=True)
class EventWindow:
    """A row of `event_window`: the output of `[start, end)` of one downstream asset.

    Attributes:
        asset: the downstream asset's name.
        version: +1 at every write of the row; the test-and-set of the next one.
        generation: how often the output was made.
        run: the run that made the output.
        files: of the output, relative to the stream's output folder.
        records: in these files.
        covered: for each shard the number of its first batch that is neither in the output nor
            looked through for late records; 0 for a shard that is missing.
        late: records of the window that were committed after it was first made.
        rerun: late records wait for the window to be made again.
        made_at: when the output was made; for people only.
    """

    asset: str
    start: datetime
    end: datetime
    version: int = 1
    generation: int = 1
    run: str = ""
    files: tuple[DataFile, ...] = ()
    records: int = 0
    covered: Mapping[ShardId, int] = field(default_factory=dict[ShardId, int])
    late: int = 0
    rerun: bool = False
    made_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WindowAttempt:
    """An attempt to make a window that is under way: vacuum leaves its files alone.

    Attributes:
        attempt: its name, which is used once; its folder of files bears it.
        run: the run that makes it.
        at: when it began; for people only.
    """

    attempt: str
    run: str
    at: datetime


class Windows(Protocol):
    """The verbs on windows of event time."""

    def windows(
        self,
        key: GroupKey,
        asset: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[EventWindow]:
        """Return the windows that overlap `[since, until)`, of one asset or all, in order."""
        ...

    def put_window(
        self, key: GroupKey, window: EventWindow, *, attempt: str | None = None
    ) -> Changed | Stale:
        """Write a window whose stored version is one less; version 1 is its first.

        With `attempt`, that attempt ends in the same transaction. `Stale` where the stored version
        is another, or the attempt is not under way any more: somebody ended it, and its files may
        be gone. Repeating a write that happened is `Changed`.
        """
        ...

    def begin_window(self, key: GroupKey, attempt: str, run: str) -> Changed:
        """Record an attempt, before its first file; repeating it is harmless."""
        ...

    def end_window(self, key: GroupKey, attempt: str) -> Changed | Stale:
        """Forget an attempt whose files nobody needs; `Stale` where it is not under way."""
        ...

    def window_attempts(self, key: GroupKey) -> list[WindowAttempt]:
        """Return the attempts under way, by name."""
        ...
