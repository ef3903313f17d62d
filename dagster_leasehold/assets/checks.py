"""The asset checks of a shard: gaps, lag and the rate of quarantined records.

A run reports them for each partition that it consumed or replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from dagster_leasehold.assets.materialization import CommittedRange
from dagster_leasehold.assets.partitions import asset_key, shard_partitions
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.journal_rows import Gap

NO_GAP = "no_gap"
LAG = "lag"
QUARANTINE_RATE = "quarantine_rate"
QUARANTINE_RATE_MAX = 0.01
STORE_AGAIN_AFTER = timedelta(days=1)
"""The time after which an unchanged outcome is stored again."""


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """The outcome of one check of one shard, or of the whole stream."""

    name: str
    passed: bool
    description: str
    metadata: dict[str, Any]
    blocking: bool = False

    @property
    def severity(self) -> dg.AssetCheckSeverity:
        """ERROR for a blocking check, otherwise WARN."""
        return dg.AssetCheckSeverity.ERROR if self.blocking else dg.AssetCheckSeverity.WARN

    def repeats(self, stored: ShardCheck | None) -> bool:
        """Return True if `stored` has the same outcome; its numbers may differ if it passed."""
        if stored is None or stored.passed is not self.passed:
            return False
        return self.passed or stored.description == self.description

    def evaluation(self, stream: ShardStream, shard: str | None) -> dg.AssetCheckEvaluation:
        """Return the outcome as Dagster's event for one partition, or for the asset if None."""
        return dg.AssetCheckEvaluation(
            asset_key=asset_key(stream),
            check_name=self.name,
            passed=self.passed,
            severity=self.severity,
            description=self.description,
            metadata=self.metadata,
            partition=shard,
        )


def check_specs(stream: ShardStream) -> list[dg.AssetCheckSpec]:
    """Return the specs of the checks of a stream's asset, with one result per partition."""
    descriptions = {
        NO_GAP: "The batches that a run committed are contiguous, and no records were skipped.",
        LAG: _lag_rule(stream),
        QUARANTINE_RATE: f"At most {QUARANTINE_RATE_MAX:.0%} of the records could not be parsed.",
    }
    partitions = shard_partitions(stream)
    with warnings.catch_warnings():
        # Checks with one result per partition are a preview feature of Dagster, used on purpose.
        # Without the filter, each process would print the warning at its start.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name, asset=asset_key(stream), description=text, partitions_def=partitions
            )
            for name, text in descriptions.items()
        ]


def check_shard(
    stream: ShardStream,
    committed: CommittedRange | None,
    *,
    gaps: Sequence[Gap],
    lag: int | None,
    lag_seconds: float | None = None,
) -> list[ShardCheck]:
    """Return the outcomes of all checks of one shard after a run.

    Args:
        committed: the range that the run committed to the shard, or None.
        gaps: the shard's gaps that are not accepted.
        lag: the number of unread records, or None if unknown.
        lag_seconds: the age of the oldest unread record, or None if unknown.
    """
    return [_no_gap(committed, gaps), _lag(stream, lag, lag_seconds), _quarantine_rate(committed)]


def _no_gap(committed: CommittedRange | None, gaps: Sequence[Gap]) -> ShardCheck:
    contiguous = committed is None or committed.contiguous
    spans = ", ".join(f"[{gap.start}, {gap.end}) ({gap.reason})" for gap in gaps[:5])
    if not contiguous:
        description = "A committed batch does not start where the one before it ends."
    elif gaps:
        description = (
            f"Records were never consumed, and the gaps are not accepted: {spans}. "
            "Accept them with `leasehold gap ack`; the check passes with the next run."
        )
    else:
        description = "Every batch starts where the one before it ends."
    passed = contiguous and not gaps
    return ShardCheck(NO_GAP, passed, description, {"gaps": len(gaps)}, blocking=True)


def _lag_rule(stream: ShardStream) -> str:
    records, seconds = stream.checks.lag_max, stream.checks.lag_max_s
    if seconds is None:
        return f"At most {records} records are unread. The check fails if the number is unknown."
    return (
        f"No record has been unread for more than {seconds:g} s, and at most {records} records are "
        "unread if the source counts them. The check fails if the age is unknown."
    )


def _limits(stream: ShardStream) -> str:
    records, seconds = f"{stream.checks.lag_max} records", stream.checks.lag_max_s
    return records if seconds is None else f"{records} and {seconds:g} s"


def _lag(stream: ShardStream, lag: int | None, seconds: float | None) -> ShardCheck:
    seconds_max = stream.checks.lag_max_s
    measured = lag if seconds_max is None else seconds
    metadata: dict[str, Any] = {"lag_known": measured is not None}
    metadata |= {} if lag is None else {"lag": lag}
    metadata |= {} if seconds is None else {"lag_seconds": round(seconds, 3)}
    if measured is None:
        # An unknown lag must not pass: a passed check states that the limit was checked.
        description = (
            f"The lag is unknown, so the limit of {_limits(stream)} cannot be checked: unread "
            "records remain that the source does not measure, or the source did not answer. Check "
            "whether the next run catches up."
        )
        return ShardCheck(LAG, False, description, metadata)
    late = seconds_max is not None and seconds is not None and seconds > seconds_max
    passed = not late and (lag or 0) <= stream.checks.lag_max
    count = "An unknown number of" if lag is None else str(lag)
    age = "" if not seconds else f", the oldest for {seconds:.0f} s"
    description = f"{count} records are unread{age}; the limit is {_limits(stream)}."
    return ShardCheck(LAG, passed, description, metadata)


def _quarantine_rate(committed: CommittedRange | None) -> ShardCheck:
    records = committed.total("records") if committed else 0
    quarantined = committed.total("quarantined") if committed else 0
    rate = quarantined / records if records else 0.0
    description = f"{quarantined} of {records} records could not be parsed."
    metadata = {"rate": rate, "quarantined": quarantined}
    return ShardCheck(QUARANTINE_RATE, rate <= QUARANTINE_RATE_MAX, description, metadata)


def joint_results(checks: Iterable[ShardCheck]) -> list[dg.AssetCheckResult]:
    """Return one result per check. A check passes if it passes for every shard of the run."""
    by_name: dict[str, list[ShardCheck]] = {}
    for check in checks:
        by_name.setdefault(check.name, []).append(check)
    results: list[dg.AssetCheckResult] = []
    for name, outcomes in by_name.items():
        # The result describes the first shard that failed, or the first shard if all passed.
        example = next((check for check in outcomes if not check.passed), outcomes[0])
        results.append(
            dg.AssetCheckResult(
                check_name=name,
                passed=example.passed,
                severity=example.severity,
                description=example.description,
                metadata=example.metadata,
            )
        )
    return results


def should_store(
    instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation, now: datetime
) -> bool:
    """Return True if the outcome differs from the last stored outcome, or that is a day old."""
    record = instance.get_latest_asset_check_evaluation_record(evaluation.asset_check_key)
    if record is None or record.event is None:
        return True
    last = record.evaluation
    # A run that planned the check, or failed before it, has stored an event without an outcome.
    if not isinstance(last, dg.AssetCheckEvaluation):
        return True
    changed = (last.passed, last.description) != (evaluation.passed, evaluation.description)
    return changed or now.timestamp() - record.event.timestamp >= STORE_AGAIN_AFTER.total_seconds()
