"""The rows of event-time windows and of attempts to compute them, as frozen values."""

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
        version: +1 at every write of the row, which names the version before it.
        generation: the number of times that the output was computed.
        files: the output's files, relative to the stream's output folder.
        covered: for each shard, a batch number: all earlier batches are in the output or were
            searched for late records; 0 for a missing shard.
        late: records of the window that were committed after it was first computed.
        rerun: True if late records wait for another computation.
        computed_at: when the output was computed; for people only.
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
    computed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WindowAttempt:
    """An attempt in progress to compute a window; vacuum keeps its files.

    Attributes:
        attempt: its unique name, also the name of its folder.
        at: when it began; for people only.
        slot: the number of its row, which later attempts reuse.
    """

    attempt: str
    run: str
    at: datetime
    slot: int = field(default=0, compare=False)
