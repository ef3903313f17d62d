"""The asset check `table`: a stream's table has exactly the files that the ledger has published.

The publishing sensor runs it periodically, and Dagster on demand. Dagster also runs it in each run
that materializes partitions. Such a run repeats the last outcome instead of comparing all files, so
that it is fast and does not fail if the catalog is unavailable.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import dagster as dg

from dagster_leasehold.assets.checks import STORE_AGAIN_AFTER, ShardCheck, joint_results
from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment, deployment_in
from dagster_leasehold.assets.errors import TooManyFiles
from dagster_leasehold.assets.partitions import asset_key, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of
from dagster_leasehold.lease_store.times import utc_now

TABLE = "table"
FILES_MAX = 100_000
"""The most batches of the ledger, and files of the table, to compare: about 5 s of CPU time."""
DIFFERENCES_SHOWN_MAX = 5
PLANNED_MAX = 20
"""The most check events to read: runs that only planned the check also store events."""
COMPARED = "compared"
"""The metadata key of the time when table and ledger were compared."""


def build_table_check(stream: ShardStream) -> dg.AssetChecksDefinition:
    """Return the check `table` of the stream's asset, for all partitions together."""
    spec = dg.AssetCheckSpec(
        TABLE,
        asset=asset_key(stream),
        description="The published table has exactly the files of the batches that are published "
        f"according to the ledger. The check compares at most {FILES_MAX:,} files.",
    )

    # Dagster's default name, `<stream>_table`, can be the name of one of the user's assets.
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
    """Return the last outcome, at most a day old, for a run of partitions to repeat.

    The sensor compares much more often, but stores an unchanged outcome only once a day.
    """
    if key not in (context.run.asset_selection or ()):
        return None
    for record in context.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(key, TABLE), limit=PLANNED_MAX
    ):
        last = record.evaluation
        if isinstance(last, dg.AssetCheckEvaluation) and COMPARED in last.metadata:
            age_s = now.timestamp() - float(str(last.metadata[COMPARED].value))
            return last if age_s < STORE_AGAIN_AFTER.total_seconds() else None
    return None


def check_table(stream: ShardStream, deployment: Deployment) -> ShardCheck:
    """Compare a stream's table with its ledger, and return the outcome."""
    # Imported here because it loads PyIceberg, which a code location does not need to load.
    from dagster_leasehold.assets.output.table.group_table import comparison_of

    store, key = deployment.store(), stream.key
    comparison = comparison_of(store, key, deployment.catalog, deployment.output_folder(key))
    if comparison is None:
        return ShardCheck(TABLE, True, "Nothing has been published yet.", {})
    try:
        outcome = replace(comparison, files_max=FILES_MAX).compare()
    except TooManyFiles as error:
        # It fails, because a passed check states that the table was compared.
        sentence = f"{error} This check does not compare that many: run `leasehold verify`."
        return ShardCheck(TABLE, False, sentence, {})
    count, examples = len(outcome.differences), outcome.differences[:DIFFERENCES_SHOWN_MAX]
    failed = " ".join((f"Differences between table and ledger: {count}.", *examples))
    passed = " ".join(("Table and ledger agree, file by file.", *outcome.notes))
    metadata: dict[str, Any] = {"files": outcome.files, "differences": count}
    metadata[COMPARED] = dg.MetadataValue.timestamp(utc_now())
    return ShardCheck(TABLE, not count, failed if count else passed, metadata, blocking=True)
