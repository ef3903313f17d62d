"""The names of a stream in Dagster: its asset, partitions, jobs, ops and tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import dagster as dg

from dagster_leasehold.assets.dagster_internals import ANONYMOUS_ASSET_JOB_PREFIX
from dagster_leasehold.assets.shard_stream import ShardStream

GROUP_NAME = "streams"
"""The Dagster group of a stream's assets, unless `asset_spec` changes it."""
SHOWN_SHARDS_MAX = 10
SHARDS_TAG_LENGTH = 35
PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
NODE_TAG = "leasehold/node"
STREAM_TAG = "leasehold/stream"
SHOWN_SHARDS_TAG = "leasehold/shards"
RECORDS_TAG = "leasehold/records"
# Dagster's pages hide tags that begin with ".dagster/".
WORK_MAX_TAG = ".dagster/leasehold_work_max_s"
PROCESS_TAG = ".dagster/leasehold_process"


def asset_key(stream: ShardStream) -> dg.AssetKey:
    """Return the key of a stream's asset: the prefix, then the stream's name."""
    return dg.AssetKey([*stream.prefix, stream.name])


def shard_partitions(stream: ShardStream) -> dg.DynamicPartitionsDefinition:
    """Return the partitions of a stream's asset: one per shard, finished shards included.

    Examples:
        >>> shard_partitions(ShardStream("visits", LocalLog("log"))).name
        'visits'
    """
    return dg.DynamicPartitionsDefinition(name=stream.name)


def partitions_of(tags: Mapping[str, str], all_keys: Callable[[], Sequence[str]]) -> list[str]:
    """Return the partitions that a run was launched for: one, a range, or none.

    Args:
        all_keys: returns all partitions, in the order of their creation.
    """
    if RANGE_START_TAG not in tags or RANGE_END_TAG not in tags:
        return [tags[PARTITION_TAG]] if PARTITION_TAG in tags else []
    keys = all_keys()
    try:
        first, last = keys.index(tags[RANGE_START_TAG]), keys.index(tags[RANGE_END_TAG])
    except ValueError:
        return []  # one was deleted
    return list(keys[first : last + 1])


def node_of_launcher(run: dg.DagsterRun) -> str | None:
    """Return the node that the launcher of a run chose, or None.

    A retry of a run of partitions inherits the tag, although its launcher chose no node:

    1. A run of several partitions dies while it consumes for its second node. The run itself has
       set its tag to that node.
    2. Dagster retries the run with all its tags.
    3. If the tag counted as a choice, the retry could not consume the other nodes' shards.
    """
    has_partitions = PARTITION_TAG in run.tags or RANGE_START_TAG in run.tags
    return None if has_partitions and run.parent_run_id else run.tags.get(NODE_TAG)


def definition_name(stream: ShardStream) -> str:
    """Return the stream's name with underscores where Dagster allows no dots and hyphens.

    It is part of the names of jobs, ops and sensors. `orchestration.build` refuses two streams
    with the same result.
    """
    return re.sub(r"[^A-Za-z0-9_]", "_", stream.name)


def consume_job_name(stream: ShardStream) -> str:
    """Return the name of the job whose runs consume several shards of one node."""
    return f"consume_{definition_name(stream)}"


def consume_op_name(stream: ShardStream) -> str:
    """Return the name of the only op of that job.

    Dagster requires different names for ops, jobs and assets. With two underscores, this name is
    unique: no stream's name begins with an underscore.
    """
    return f"consume__{definition_name(stream)}"


def listed_shards(shards: Sequence[str]) -> str:
    """Return the first shards as text, such as `0, 1, 2, …`."""
    rest = ", …" if len(shards) > SHOWN_SHARDS_MAX else ""
    return f"{', '.join(shards[:SHOWN_SHARDS_MAX])}{rest}"


def shards_tag(shards: Sequence[str]) -> dict[str, str]:
    """Return the tag that lists a run's shards; Dagster's pages show its first 50 characters."""
    count = 1
    while count < len(shards) and len(", ".join(shards[: count + 1])) <= SHARDS_TAG_LENGTH:
        count += 1
    text, rest = ", ".join(shards[:count]), len(shards) - count
    return {SHOWN_SHARDS_TAG: f"{text} and {rest:,} more" if rest > 0 else text} if shards else {}


def automation_job(stream: ShardStream) -> dg.UnresolvedAssetJobDefinition:
    """Return a job that links a sensor to the stream's asset on Dagster's page.

    Dagster lists a sensor on an asset's page only if the sensor targets an asset selection or an
    asset job. Dagster's pages hide jobs with this prefix, and no sensor launches this one.
    """
    return dg.define_asset_job(
        f"{ANONYMOUS_ASSET_JOB_PREFIX}_{definition_name(stream)}",
        selection=dg.AssetSelection.assets(asset_key(stream)),
    )


def compact_job_name(stream: ShardStream) -> str:
    """Return the name of the job that merges small files of a stream's committed output."""
    return f"compact_{definition_name(stream)}"


def compact_op_name(stream: ShardStream) -> str:
    """Return the name of the only op of that job; see `consume_op_name`."""
    return f"compact__{definition_name(stream)}"


def output_key(stream: ShardStream) -> str:
    """Return the key of the IO manager that reads the stream's output.

    The key contains the stream's name, because one code location can merge the definitions of
    several streams and of the user, and a resource key must be unique in it.
    """
    return f"leasehold_output__{definition_name(stream)}"


def asset_op_name(stream: ShardStream) -> str:
    """Return the name of the op behind a stream's asset."""
    return f"materialize__{definition_name(stream)}"
