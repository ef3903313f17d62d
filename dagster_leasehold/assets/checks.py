"""The checks of a shard, which a run reports for each partition that it consumed."""

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
STORED_FOR = timedelta(days=1)
"""The time after which an outcome is stored again although it is the same."""


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
        """An error where data is missing, a warning where a person should look."""
        return dg.AssetCheckSeverity.ERROR if self.blocking else dg.AssetCheckSeverity.WARN

    def repeats(self, stored: ShardCheck | None) -> bool:
        """Return True if an outcome that is stored says the same, but for numbers of a success."""
        if stored is None or stored.passed is not self.passed:
            return False
        return self.passed or stored.description == self.description

    def evaluation(self, stream: ShardStream, shard: str | None) -> dg.AssetCheckEvaluation:
        """Return the outcome as an event about one partition, or about all of them together."""
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
    """Return the checks of a stream's asset, with one result per partition."""
    described = {
        NO_GAP: "The batches that a run committed follow each other, and nothing was skipped.",
        LAG: _lag_rule(stream),
        QUARANTINE_RATE: f"At most {QUARANTINE_RATE_MAX:.0%} of the records could not be parsed.",
    }
    partitions = shard_partitions(stream)
    with warnings.catch_warnings():
        # Checks with one result per partition are a preview feature of Dagster, used on purpose;
        # the warning would greet every start of every process.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name, asset=asset_key(stream), description=text, partitions_def=partitions
            )
            for name, text in described.items()
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
        stream: the declaration, for its limits.
        committed: the range that the run committed to the shard, or None.
        gaps: the shard's unacknowledged gaps.
        lag: the shard's unread records, or None where the source cannot tell.
        lag_seconds: the age of the oldest of them, or None likewise.
    """
    return [_no_gap(committed, gaps), _lag(stream, lag, lag_seconds), _quarantine_rate(committed)]


def _no_gap(committed: CommittedRange | None, gaps: Sequence[Gap]) -> ShardCheck:
    contiguous = committed is None or committed.contiguous
    spans = ", ".join(f"[{gap.start}, {gap.end}) ({gap.reason})" for gap in gaps[:5])
    if not contiguous:
        description = "A committed batch does not start where the one before it ends."
    elif gaps:
        description = (
            f"Records were never consumed, and that was not accepted: {spans}. "
            "Accept it with `leasehold gap ack`; the check passes with the next run."
        )
    else:
        description = "Every batch starts where the one before it ends."
    passed = contiguous and not gaps
    return ShardCheck(NO_GAP, passed, description, {"gaps": len(gaps)}, blocking=True)


def _lag_rule(stream: ShardStream) -> str:
    records, seconds = stream.checks.lag_max, stream.checks.lag_max_s
    if seconds is None:
        return f"At most {records} records are unread. An unknown number does not pass."
    return (
        f"No record is unread for more than {seconds:g} s; of the records that are counted, "
        f"at most {records} are unread. An unknown age does not pass."
    )


def _limits(stream: ShardStream) -> str:
    records, seconds = f"{stream.checks.lag_max} records", stream.checks.lag_max_s
    return records if seconds is None else f"{records}, none for {seconds:g} s,"


def _lag(stream: ShardStream, lag: int | None, seconds: float | None) -> ShardCheck:
    seconds_max = stream.checks.lag_max_s
    judged = lag if seconds_max is None else seconds
    metadata: dict[str, Any] = {"lag_known": judged is not None}
    metadata |= {} if lag is None else {"lag": lag}
    metadata |= {} if seconds is None else {"lag_seconds": round(seconds, 3)}
    if judged is None:
        # A check that passes says that all was compared: where that was impossible, it must not.
        description = (
            f"It is not known whether more than {_limits(stream)} are unread: the shard is behind "
            "its end, and its source does not tell, or the source did not answer. See whether the "
            "next run catches up."
        )
        return ShardCheck(LAG, False, description, metadata)
    late = seconds_max is not None and seconds is not None and seconds > seconds_max
    passed = not late and (lag or 0) <= stream.checks.lag_max
    count = "An unknown number of" if lag is None else str(lag)
    age = "" if not seconds else f", the oldest for {seconds:.0f} s"
    description = f"{count} records are unread{age}; the limit is {_limits(stream).rstrip(',')}."
    return ShardCheck(LAG, passed, description, metadata)


def _quarantine_rate(committed: CommittedRange | None) -> ShardCheck:
    records = committed.total("records") if committed else 0
    quarantined = committed.total("quarantined") if committed else 0
    rate = quarantined / records if records else 0.0
    description = f"{quarantined} of {records} records could not be parsed."
    metadata = {"rate": rate, "quarantined": quarantined}
    return ShardCheck(QUARANTINE_RATE, rate <= QUARANTINE_RATE_MAX, description, metadata)


def joint_results(checks: Iterable[ShardCheck]) -> list[dg.AssetCheckResult]:
    """Return one result per check over all shards of a run: passed if it passed for each."""
    by_name: dict[str, list[ShardCheck]] = {}
    for check in checks:
        by_name.setdefault(check.name, []).append(check)
    results: list[dg.AssetCheckResult] = []
    for name, outcomes in by_name.items():
        # Of several shards the first that did not pass is shown.
        first_failed = next((check for check in outcomes if not check.passed), outcomes[0])
        results.append(
            dg.AssetCheckResult(
                check_name=name,
                passed=first_failed.passed,
                severity=first_failed.severity,
                description=first_failed.description,
                metadata=first_failed.metadata,
            )
        )
    return results


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
