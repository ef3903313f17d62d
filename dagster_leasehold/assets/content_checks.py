"""The asset checks of a stream's publication checks: what they hold, and what failed last.

They read the lease store and no files: the records are checked when they are published. The
publishing sensor stores changed outcomes. Dagster also runs the checks with the stream's asset, so
that a blocking check stops downstream assets of the same run.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_leasehold.assets.checks import ShardCheck, joint_results
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.partitions import asset_key, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_check import build_table_check
from dagster_leasehold.lease_store.publication_rows import HeldOutput

SHARDS_SHOWN_MAX = 3


def build_table_checks(stream: ShardStream) -> list[dg.AssetChecksDefinition]:
    """Return the check `table` and the publication checks of a stream, for all partitions."""
    checks = stream.iceberg.publication_checks
    if not checks:
        return [build_table_check(stream)]
    specs = [
        dg.AssetCheckSpec(
            check.name,
            asset=asset_key(stream),
            description=f"{check.rule} Records are checked before they are published; on failure: "
            f"{check.on_failure}.",
            blocking=check.on_failure != "warn",
        )
        for check in checks
    ]

    @dg.multi_asset_check(
        name=f"content__{definition_name(stream)}", specs=specs, required_resource_keys={LEASEHOLD}
    )
    def content_checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        yield from joint_results(check_contents(stream, deployment_in(context.resources)))

    return [build_table_check(stream), content_checks]


def check_contents(stream: ShardStream, deployment: Deployment) -> list[ShardCheck]:
    """Return the outcome of each publication check of a stream."""
    checks = stream.iceberg.publication_checks
    if not checks:
        return []
    store, key = deployment.store(), stream.key
    publication, held_output = store.publication(key), store.held_output(key)
    failures = {each.check: each for each in (publication.failures if publication else ())}
    outcomes: list[ShardCheck] = []
    for check in checks:
        held = [each for each in held_output if each.hold.check == check.name]
        failure = failures.get(check.name)
        metadata: dict[str, Any] = {
            "held_shards": len(held),
            "held_batches": sum(each.lag.batches for each in held),
            "held_records": sum(each.lag.records for each in held),
        }
        if held:
            description = _held_text(stream, held)
        elif failure is not None:
            description = f"Batch {failure.batch} of shard {failure.shard} failed: {failure.reason}"
        else:
            description = "All records that were checked last have passed."
        passed, blocking = not held and failure is None, bool(held)
        outcomes.append(ShardCheck(check.name, passed, description, metadata, blocking=blocking))
    return outcomes


def _held_text(stream: ShardStream, held: list[HeldOutput]) -> str:
    further = len(held) - SHARDS_SHOWN_MAX
    texts = [str(each) for each in held[:SHARDS_SHOWN_MAX]]
    if further > 0:
        texts.append(f"{further} further shards are held.")
    remedy = f"To publish a shard as it is, run `leasehold publish {stream.name} SHARD --override`."
    return " ".join([*texts, remedy])
