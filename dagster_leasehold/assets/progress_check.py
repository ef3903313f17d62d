"""The asset check `progress` of a stream, which names each shard without progress, and the reason.

It is one check of the whole asset. A check per partition would not work: Dagster stores one outcome
per partition and run, and only one outside runs, so the sensor could report a partition only once.
"""

from collections.abc import Iterator, Mapping

import dagster as dg

from dagster_leasehold.assets.checks import ShardCheck, joint_results
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.obstacles import Obstacle, live_nodes, obstacle
from dagster_leasehold.assets.partitions import asset_key, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.shard_sources.lag import lags_of

PROGRESS = "progress"
SHOWN_MAX = 20


def build_progress_check(stream: ShardStream) -> dg.AssetChecksDefinition:
    """Return the check `progress`; the rebalance sensor reports its outcome, too."""
    spec = dg.AssetCheckSpec(
        PROGRESS,
        asset=asset_key(stream),
        description="Every shard makes progress or is read to its end. The check names any other "
        "shard within a minute, with the reason.",
    )

    @dg.multi_asset_check(
        name=f"progress__{definition_name(stream)}",
        specs=[spec],
        required_resource_keys={LEASEHOLD},
    )
    def progress_check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        try:
            outcome = progress_outcome(current_obstacles(stream, deployment_in(context.resources)))
        except Exception as error:
            sentence = f"The progress of the shards is unknown: {sentence_of(error)}"
            outcome = ShardCheck(PROGRESS, False, sentence, {})
        yield from joint_results([outcome])

    return progress_check


def current_obstacles(
    stream: ShardStream, deployment: Deployment
) -> dict[ShardId, Obstacle | None]:
    """Return the obstacle of each shard, or None, from the store and the source."""
    store, key = deployment.store(), stream.key
    snapshot = store.snapshot(key)
    nodes = live_nodes(snapshot, store.beat_ages(key))
    lags = lags_of(stream.source, snapshot.shards)
    return {
        row.shard: obstacle(
            key,
            row,
            nodes=nodes,
            unread=lags.unread(row.shard),
            source_error=lags.error_of(row.shard),
        )
        for row in snapshot.shards
    }


def progress_outcome(obstacles: Mapping[ShardId, Obstacle | None]) -> ShardCheck:
    """Return the outcome of the check, with the first obstacles."""
    stalled = {shard: each for shard, each in obstacles.items() if each is not None}
    if not stalled:
        return ShardCheck(PROGRESS, True, "Every shard makes progress or is read to its end.", {})
    first = next(iter(stalled.values())).sentence
    count = f"{len(stalled)} of {len(obstacles)} shards make no progress."
    sentence = first if len(stalled) == 1 else f"{count} {first}"
    examples = list(stalled.items())[:SHOWN_MAX]
    table = dg.MetadataValue.table(
        [
            dg.TableRecord({"shard": shard, "kind": each.kind.value, "reason": each.sentence})
            for shard, each in examples
        ]
    )
    metadata = {"stalled": len(stalled), "shards": table}
    return ShardCheck(PROGRESS, False, sentence, metadata, blocking=True)
