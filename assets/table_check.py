"""The check of a stream's table: it has the files that the ledger says are published.

The sensor that publishes makes it now and then. Dagster makes it on demand, too, and along with a
materialization, which has to succeed whatever became of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import dagster as dg

from dagster_leasehold.assets.checks import ShardCheck, joint_results
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.assets.errors import TooManyFiles
from dagster_leasehold.assets.partitions import asset_key, definition_name
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of

TABLE = "table"
FILES_MAX = 100_000
"""The most batches of the ledger, and files of the table, that are compared: 5 s of processor."""
DIFFERENCES_SHOWN_MAX = 5
STORED_FOR = timedelta(days=1)
"""The time after which an outcome is stored again although it is the same."""


def build_table_check(stream: ShardStream, deployment: Deployment) -> dg.AssetChecksDefinition:
    """Return the check `table` of the stream's asset, of all partitions together."""
    spec = dg.AssetCheckSpec(
        TABLE,
        asset=asset_key(stream),
        description="The published table has the files of the batches that the ledger says are "
        f"published, no more and no less; compared up to {FILES_MAX:,} of them.",
    )

    # The name that Dagster would choose, `<stream>_table`, may be that of an asset of the user.
    @dg.multi_asset_check(name=f"table__{definition_name(stream)}", specs=[spec])
    def table_check() -> Iterator[dg.AssetCheckResult]:
        try:
            outcome = check_table(stream, deployment)
        except Exception as error:
            sentence = f"Table and ledger could not be compared: {sentence_of(error)}"
            outcome = ShardCheck(TABLE, False, sentence, {})
        yield from joint_results([outcome])

    return table_check


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
        # A check that passes says that somebody looked.
        sentence = f"{error} They are not compared here: `leasehold verify` does it."
        return ShardCheck(TABLE, False, sentence, {})
    number, shown = len(outcome.differences), outcome.differences[:DIFFERENCES_SHOWN_MAX]
    sentence = " ".join((f"Differences between table and ledger: {number}.", *shown))
    metadata = {"files": outcome.files, "differences": number}
    passed = "Table and ledger agree, file by file."
    return ShardCheck(TABLE, not number, sentence if number else passed, metadata, blocking=True)


def is_news(
    instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation, now: datetime
) -> bool:
    """Return True if an outcome is not the last that Dagster stored, or if that one is old."""
    record = instance.get_latest_asset_check_evaluation_record(evaluation.asset_check_key)
    if record is None or record.event is None:
        return True
    last = record.evaluation
    # A run that is to make the check, or that failed before it, left an event without an outcome.
    if not isinstance(last, dg.AssetCheckEvaluation):
        return True
    changed = (last.passed, last.description) != (evaluation.passed, evaluation.description)
    return changed or now.timestamp() - record.event.timestamp >= STORED_FOR.total_seconds()
