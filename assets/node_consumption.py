"""A run consuming shards of one node: the heartbeat around the batch loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from assets.bootstrapping import bootstrap_cursors
from assets.consumption import Consumer
from assets.consumption_report import ConsumptionReport
from assets.deployment import Deployment
from assets.shard_stream import ShardStream
from assets.spark_resource import SparkResource
from assets.spark_sweeper import SparkSweeper
from lease_store.heartbeat import Heartbeat
from lease_store.identifiers import NodeName, ShardId
from lease_store.records import BEAT_FRACTION_MAX, BatchCommit, Timing


def consume_shards(
    stream: ShardStream,
    deployment: Deployment,
    *,
    spark: SparkResource,
    node: NodeName,
    incarnation: str,
    run: str,
    shards: Sequence[ShardId],
    after_commit: Callable[[Sequence[BatchCommit]], None],
) -> tuple[list[ConsumptionReport], float]:
    """Consume shards that `node` holds; one report per shard, and the seconds that it took.

    `after_commit` is told of every batch right after its commit.

    The run beats for its node: should the sensor's process die, the node lives on as long as the
    run works, and no shard changes hands for nothing.

    Raises:
        LeaseholdError: what concerns the whole run, such as a store that does not answer.
    """
    store = deployment.store()
    pulse = store.pulse(stream.key)
    timeout_s = pulse.group.timeout_s
    timing = Timing(timeout_s=timeout_s, beat_s=timeout_s * BEAT_FRACTION_MAX)
    started_s = time.monotonic()
    with Heartbeat(store, stream.key, node, incarnation, timing) as heartbeat:
        sweeper = SparkSweeper(
            stream=stream,
            session=lambda: spark.spark_session,
            output_root=deployment.output_folder(stream.key),
            run=run,
            doomed=lambda: not heartbeat.trusted,
        )
        consumer = Consumer(
            stream=stream,
            store=store,
            node=node,
            run=run,
            sweeper=sweeper,
            heartbeat=heartbeat,
            clock=time.monotonic,
            stop_requested=deployment.leaving,
            after_commit=after_commit,
            bootstrap=bootstrap_cursors(pulse, node),
        )
        reports = consumer.consume(shards)
    return list(reports.values()), time.monotonic() - started_s
