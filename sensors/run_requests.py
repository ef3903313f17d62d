"""What a run that serves several shards of one node is asked to do."""

from __future__ import annotations

import dagster as dg

from dagster_leasehold.assets.consume_job import ConsumeConfig
from dagster_leasehold.assets.partitions import (
    NODE_TAG,
    STREAM_TAG,
    consume_job_name,
    consume_op_name,
)
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.sensors.launching import Launch

MAX_RUNTIME_TAG = "dagster/max_runtime"
MAX_RETRIES_TAG = "dagster/max_retries"
OVERTIME_S = 900
"""On top of budget and stall limit, after which Dagster ends a run that is still at work."""


def run_request(stream: ShardStream, launch: Launch, incarnation: str) -> dg.RunRequest:
    """The request for a run of `consume_<stream>`.

    It has no run key: Dagster refuses a key that was used once for ever, and what keeps two runs
    apart is the lease. Nor is it retried by Dagster: the next tick launches what is left, for
    whichever node owns it then.
    """
    config = ConsumeConfig(node=launch.node, incarnation=incarnation, shards=list(launch.shards))
    return dg.RunRequest(
        job_name=consume_job_name(stream),
        run_config=dg.RunConfig(ops={consume_op_name(stream): config}),
        tags={
            NODE_TAG: launch.node,
            STREAM_TAG: stream.name,
            MAX_RUNTIME_TAG: str(_runtime_max_s(stream)),
            MAX_RETRIES_TAG: "0",
        },
    )


def _runtime_max_s(stream: ShardStream) -> int:
    # A run that hangs ends by itself before; this is for one that cannot even do that.
    return round(stream.run_budget_s + stream.stall_limit_s) + OVERTIME_S
