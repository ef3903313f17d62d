"""A stream over a scripted source, and the deployment that serves it, all in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import LogCorrupt, SourceUnavailable
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.sensors.active_runs import ActiveRuns
from dagster_leasehold.sensors.steps import Outcome, Step, Tick
from dagster_leasehold.shard_sources.source import (
    Limits,
    PlannedRange,
    Position,
    ReadRange,
    ShardBounds,
)

if TYPE_CHECKING:
    import dagster as dg
import pyarrow as pa


@dataclass
class ScriptedSource:
    """Shards whose list and bounds a test sets; it fails while `down` holds a sentence."""

    shards: list[ShardListing] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    down: str = ""
    damaged: set[str] = field(default_factory=set)

    def list_shards(self) -> list[ShardListing]:
        self._answer()
        return list(self.shards)

    def bounds(self, shards: Sequence[ShardId]) -> dict[ShardId, ShardBounds]:
        self._answer()
        if broken := self.damaged & set(shards):
            raise LogCorrupt(f"shard {min(broken)} is damaged: restore it.")
        return {
            shard: ShardBounds("0", str(self.ends.get(shard, 0)), shard in self.finished)
            for shard in shards
        }

    def cursor_at(self, shard: ShardId, position: Position | datetime) -> str:
        return "0" if position == Position.BEGIN else str(self.ends.get(shard, 0))

    def plan(self, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
        end = min(self.ends.get(shard, 0), int(start) + limits.records_max)
        last = shard in self.finished and end == self.ends.get(shard, 0)
        return PlannedRange(str(end), end - int(start), last)

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        return int(bounds.end) - int(cursor)

    def spark_options(self) -> Mapping[str, str]:
        return {}

    def read(self, range_: ReadRange) -> Iterator[pa.RecordBatch]:
        raise AssertionError("no test of a sensor reads records")

    def _answer(self) -> None:
        if self.down:
            raise SourceUnavailable(self.down)


class MirroringSource(ScriptedSource):
    """Its service accepts mirrored checkpoints, except while `refuses` has a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.mirrors = True
        self.mirrored: list[dict[ShardId, str]] = []
        self.refuses = ""

    def mirror(self, checkpoints: Mapping[ShardId, str]) -> None:
        if self.refuses:
            raise SourceUnavailable(self.refuses)
        self.mirrored.append(dict(checkpoints))


def run_step(step: Step, instance: dg.DagsterInstance, cursor: str | None = None) -> Outcome:
    """Do a step once, as a tick of its sensor does."""
    return step.run(Tick(ActiveRuns(instance), cursor or ""))


def scripted_stream(shards: int = 2, name: str = "orders.eu") -> tuple[ShardStream, ScriptedSource]:
    source = ScriptedSource([ShardListing(ShardId(str(n))) for n in range(shards)])
    return ShardStream(name=name, source=source), source


def memory_deployment(
    *nodes: str, store: MemoryStore | None = None
) -> tuple[Deployment, MemoryStore]:
    memory = store or MemoryStore()
    names = tuple(NodeName(node) for node in nodes or ("local",))
    return Deployment(lambda: memory, names, Timing(), lambda key: Path("unused")), memory
