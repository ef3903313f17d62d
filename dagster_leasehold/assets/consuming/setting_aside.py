"""Sends records that block their shard to quarantine, as they were read or without their bytes.

`spark_sweeper` calls it for records on which the transform or the reader failed.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN
from dagster_leasehold.assets.consuming.spark_work import SweepJob
from dagster_leasehold.assets.consuming.sweep import Retry, SweepOutcome
from dagster_leasehold.assets.output.attempts import file_name
from dagster_leasehold.assets.output.shard_files import RangeFiles
from dagster_leasehold.assets.output.worker_results import RangeStatistics
from dagster_leasehold.shard_sources.source import record_schema

if TYPE_CHECKING:
    import pyarrow as pa

UNREAD = "its bytes could not be read"


@dataclass(frozen=True)
class SetAside:
    """A transform that sends each record to quarantine with one reason."""

    reason: str

    def __call__(self, records: pa.Table) -> pa.Table:
        """Return the records with the reason as their error."""
        import pyarrow as pa

        errors = pa.array([self.reason] * records.num_rows, pa.string())
        return records.append_column(ERROR_COLUMN, errors)


def set_aside_unread(job: SweepJob, each: Retry) -> SweepOutcome:
    """Write a quarantine row for a record that cannot be read, without a Spark job."""
    import pyarrow as pa

    shard, cursor = each.range_.shard, each.range_.start
    row = {"shard_id": shard, "cursor": cursor, ERROR_COLUMN: f"{each.set_aside} ({UNREAD})"}
    schema = record_schema().append(pa.field(ERROR_COLUMN, pa.string()))
    attempt, folder = job.begin_attempt()
    names = partial(file_name, shard, each.numbers, f"0000-{uuid.uuid4().hex}")
    files = RangeFiles(folder, names, shard, "")
    files.add(pa.RecordBatch.from_pylist([row], schema))
    written = files.finish()
    files.sync()
    folder.sync_folder()
    return SweepOutcome.of(attempt, RangeStatistics(records=1), written)
