"""The rows of windows of event time, and of attempts to make them, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile


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
        slot: the number of its row, which later attempts use again.
    """

    attempt: str
    run: str
    at: datetime
    slot: int = field(default=0, compare=False)
