"""Shards held at a record, as their check shows them where a killed run could not say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import dagster as dg

from dagster_leasehold.assets.checks import blocked_check
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.isolation import sentence
from dagster_leasehold.lease_store.shard_rows import Progress


@dataclass(slots=True)
class BlockedShards:
    """A memory of what was reported of each held shard; without it, that is reported again."""

    _reported: dict[ShardId, str] = field(default_factory=dict[ShardId, str])

    def see(
        self,
        instance: dg.DagsterInstance,
        stream: ShardStream,
        rows: Iterable[Progress],
        steps: FailingSteps,
    ) -> None:
        """Report each shard that is held since the last look; the run that heals it reports that.

        A run reports the shards that it fails to consume, but not if it is killed.
        """
        held = {row.shard: row for row in rows if row.suspicion and row.suspicion.held}
        self._reported = {s: text for s, text in self._reported.items() if s in held}
        for shard, row in held.items():
            text = sentence(stream.key, shard, row.check_point, row.suspicion)
            if self._reported.get(shard) == text:
                continue
            evaluation = blocked_check(text).evaluation(stream, shard)
            report = partial(instance.report_runless_asset_event, evaluation)
            steps.attempt(f"reporting that shard {shard} is held", report, None)
            self._reported[shard] = text
