"""Mutants for the soak: each removes one fix, and a part stalls again.

Like the mutants of `tests.simulation.mutants` for the protocol, these show that the soak can fail:
each names the scene that notices it, and the text of its finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest import mock

from dagster_leasehold.lease_store.errors import UnknownShard
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.rules.liveness import ObservedTime
from dagster_leasehold.sensors.late_records import LateRecords, windows_of
from dagster_leasehold.sensors.on_commit import HookDelivery
from dagster_leasehold.shard_sources.source import Limits, PlannedRange, ShardBounds
from tests.simulation.soak.scenes import SCENES
from tests.simulation.soak.synthetic_log import LogShard, SyntheticLog


@dataclass(frozen=True)
class Mutant:
    """A fix that is removed.

    Attributes:
        name: the behaviour of the code without it.
        scene: the name of the scene that notices it.
        patches: replacements by dotted name.
        finding: a text that the scene's finding must contain.
    """

    name: str
    scene: str
    patches: Mapping[str, object]
    finding: str

    def findings(self) -> list[str]:
        """Play the scene with the remedy taken out; return its findings."""
        with ExitStack() as stack:
            for place, mutation in self.patches.items():
                stack.enter_context(mock.patch(place, mutation))
            return SCENES[self.scene].play()


def _unbounded_wait_s(failures: int, *, first_s: float, max_s: float, jitter: float = 0.0) -> float:
    """The wait is cut to the longest one only after it has grown beyond all numbers."""
    return min(first_s * 2 ** max(failures - 1, 0), max_s) * (1 - jitter / 2)


def _node_of_the_setting(self: HookDelivery, address: str) -> tuple[NodeName, str] | None:
    """The node that can call the hook is searched among those of the setting."""
    deployment = self._deployment
    for node in deployment.store().pulse(self._stream.key).nodes:
        if node.member and node.name in deployment.nodes:
            return node.name, node.incarnation
    return None


def _bounds_of_listed(self: SyntheticLog, shards: list[ShardId]) -> dict[ShardId, ShardBounds]:
    """A source knows nothing of a shard that retention has removed."""
    self._answer()
    return {shard: self._bounds(_listed(self.shards[shard])) for shard in shards}


def _plan_of_listed(self: SyntheticLog, shard: ShardId, start: str, limits: Limits) -> PlannedRange:
    """As for the bounds."""
    return _PLAN(self, _listed(self.shards[shard]).shard, start, limits)


def _listed(entry: LogShard) -> LogShard:
    if entry.gone:
        raise UnknownShard(f"The log has no shard {entry.shard!r}.")
    return entry


def _read_until_made(self: LateRecords, since: datetime, until: datetime, leases: Any) -> None:
    """Batches of hours that are not computed are read again at every tick."""
    before = dict(self._next or {})
    _READ(self, since, until, leases)
    if self._ends.keys() - windows_of(self.store, self.hourly, self._ends).keys():
        self._next = before
        for lease in leases:
            self._seen.pop(lease.shard, None)


_READ = LateRecords._read
_PLAN = SyntheticLog.plan
_STALL_GUARD = "dagster_leasehold.assets.guarding.stall_guard"
_LOG = "tests.simulation.soak.synthetic_log.SyntheticLog"

MUTANTS = [
    Mutant(
        "a wait that grows before it is bounded",
        "a shard fails for ever",
        {"dagster_leasehold.sensors.launch_choice.retry_wait_s": _unbounded_wait_s},
        "parcels",
    ),
    Mutant(
        "hooks are called by the nodes of a setting",
        "hooks where nodes have agents",
        {"dagster_leasehold.sensors.on_commit.HookDelivery._live_node": _node_of_the_setting},
        "on_commit was not called",
    ),
    Mutant(
        "a shard that was removed is unknown",
        "a shard is removed",
        {f"{_LOG}.bounds": _bounds_of_listed, f"{_LOG}.plan": _plan_of_listed},
        "shard 0 of orders/default stood still",
    ),
    Mutant(
        "a run waits for its job for ever",
        "a run hangs",
        {f"{_STALL_GUARD}.StallGuard.call": lambda _guard, _what, work: work()},
        "of orders/default stood still",
    ),
    Mutant(
        "a waiting run does not look at its leases",
        "a waiting run is asked",
        {"dagster_leasehold.assets.consuming.open_shards.OpenShards.review": lambda _: None},
        "though its group has been paused",
    ),
    Mutant(
        "a node takes shards though its daemon is down",
        "a daemon is down",
        {f"{Member.__module__}.Member.planner_silent_s": 0.0},
        "of orders/default stood still",
    ),
    Mutant(
        "a failed hour is not asked for again",
        "hours fail",
        {"dagster_leasehold.sensors.requested_hours.RequestedHours.due": lambda *_: []},
        "has not moved for",
    ),
    Mutant(
        "late records of hours that failed are read at every tick",
        "hours fail",
        {"dagster_leasehold.sensors.late_records.LateRecords._read": _read_until_made},
        "a tick of orders_hours_watermark read",
    ),
    Mutant(
        "time without a look counts as silence",
        "the store is away",
        {f"{ObservedTime.__module__}.ObservedTime._excluded_s": lambda *_: 0.0},
        "is alive and was evicted",
    ),
]


def shown(findings: list[str]) -> Any:
    """Findings as a failed test shows them."""
    return "\n".join(findings) or "no finding"
