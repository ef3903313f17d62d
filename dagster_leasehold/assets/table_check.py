"""The check of a stream's table: it has the files that the ledger says are published.

The sensor that publishes makes it now and then, and Dagster on demand. A run that materializes
partitions is asked for it as well: it repeats the last outcome instead of comparing all files, and
has to succeed even if the catalog is away.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import dagster as dg

from dagster_leasehold.assets.checks import STORED_FOR, ShardCheck, joint_results
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.errors import TooManyFiles
from dagster_leasehold.assets.partitions import asset_key, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.times import utc_now

TABLE = "table"
FILES_MAX = 100_000
"""The most batches of the ledger, and files of the table, that are compared: 5 s of processor."""
DIFFERENCES_SHOWN_MAX = 5
PLANNED_MAX = 20
"""The most runs at a time that have planned the check and not made it yet."""
COMPARED = "compared"
"""The metadata that says when table and ledger were compared."""


def build_table_check(stream: ShardStream) -> dg.AssetChecksDefinition:
    """Return the check `table` of the stream's asset, of all partitions together."""
    spec = dg.AssetCheckSpec(
        TABLE,
        asset=asset_key(stream),
        description="The published table has the files of the batches that the ledger says are "
        f"published, no more and no less; compared up to {FILES_MAX:,} of them.",
    )

    # The name that Dagster would choose, `<stream>_table`, can be that of an asset of the user.
    @dg.multi_asset_check(
        name=f"table__{definition_name(stream)}", specs=[spec], required_resource_keys={LEASEHOLD}
    )
    def table_check(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        if last := _last_outcome(context, asset_key(stream), utc_now()):
            yield dg.AssetCheckResult(
                passed=last.passed,
                check_name=TABLE,
                severity=last.severity,
                description=last.description,
                metadata=last.metadata,
            )
            return
        try:
            outcome = check_table(stream, deployment_in(context.resources))
        except Exception as error:
            sentence = f"Table and ledger could not be compared: {sentence_of(error)}"
            outcome = ShardCheck(TABLE, False, sentence, {})
        yield from joint_results([outcome])

    return table_check


def _last_outcome(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, now: datetime
) -> dg.AssetCheckEvaluation | None:
    """Return the outcome that a run of partitions repeats: the last, of the last day.

    The sensor compares far more often, and stores news only.
    """
    if key not in (context.run.asset_selection or ()):
        return None
    for record in context.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(key, TABLE), limit=PLANNED_MAX
    ):
        last = record.evaluation
        if isinstance(last, dg.AssetCheckEvaluation) and COMPARED in last.metadata:
            age_s = now.timestamp() - float(str(last.metadata[COMPARED].value))
            return last if age_s < STORED_FOR.total_seconds() else None
    return None


def check_table(stream: ShardStream, deployment: Deployment) -> ShardCheck:
    """Return the outcome of comparing a stream's table with its ledger.

    Raises:
        TableUnavailable: the catalog or the table's metadata cannot be read.
        StoreError: the lease store does not answer.
    """
    # It loads PyIceberg, which a code location that loads does not need.
    from dagster_leasehold.assets.output.table.group_table import comparison_of

    store, key = deployment.store(), stream.key
    comparison = comparison_of(store, key, deployment.catalog, deployment.output_folder(key))
    if comparison is None:
        return ShardCheck(TABLE, True, "Nothing has been published yet.", {})
    try:
        outcome = replace(comparison, files_max=FILES_MAX).compare()
    except TooManyFiles as error:
        # A check that passes says that the table was compared.
        sentence = f"{error} They are not compared here: `leasehold verify` does it."
        return ShardCheck(TABLE, False, sentence, {})
    number, examples = len(outcome.differences), outcome.differences[:DIFFERENCES_SHOWN_MAX]
    sentence = " ".join((f"Differences between table and ledger: {number}.", *examples))
    metadata: dict[str, Any] = {"files": outcome.files, "differences": number}
    metadata[COMPARED] = dg.MetadataValue.timestamp(utc_now())
    passed = " ".join(("Table and ledger agree, file by file.", *outcome.notes))
    return ShardCheck(TABLE, not number, sentence if number else passed, metadata, blocking=True)
