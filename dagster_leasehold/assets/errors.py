"""Errors on the way from a stream to its output: Spark, Java, transforms, and committed output.

They have the root and the form of `lease_store.errors`: one sentence each, for its reader.
"""

from __future__ import annotations

from dagster_leasehold.lease_store.errors import LeaseholdError, UserMistake


class DagsterUnsupported(UserMistake):
    """This release of Dagster lacks something that Leasehold needs."""


class SparkUnavailable(LeaseholdError):
    """Spark could not be started or reached."""


class SparkAway(SparkUnavailable):
    """Spark did no work at all for a job: it could not be reached, or had no free core."""


class SessionLost(SparkUnavailable):
    """The session with Spark is gone, or the server that it was with; a new one can work."""


class SparkFeatureMissing(SparkUnavailable):
    """The Spark that answers does not do what the work needs; another one may."""


class JavaNotFound(UserMistake):
    """No Java that Spark can run on was found."""


class SweepInterrupted(LeaseholdError):
    """A Spark job was interrupted on purpose, because its run can no longer publish anything."""


class TransformError(UserMistake):
    """The user's transform raised, or returned something that cannot be committed."""


class TransformUnusable(TransformError):
    """The user's transform cannot be applied to any record."""


class RecordBlocks(LeaseholdError):
    """A shard is held at a record where every run hangs or crashes."""


class QuarantineLimitExceeded(UserMistake):
    """More records of a batch could not be parsed than the stream allows."""


class OutputUnreadable(UserMistake):
    """Committed output cannot be read in the way that was asked for."""


class RewriteRefused(UserMistake):
    """Committed output of a shard cannot be replaced like this, or not now."""


class WindowIncomplete(UserMistake):
    """A shard can still deliver records of the window of event time."""


class TableUnavailable(LeaseholdError):
    """A published table, or its catalog, cannot be reached or is not the stream's."""


class PublicationRefused(TableUnavailable):
    """A catalog refused a publication; it is sent again, or replaced, after a wait."""


class TooManyFiles(LeaseholdError):
    """A table has more files, or its ledger more batches, than the caller has time for."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The table has more than {most:,} files, or its ledger as many batches.")


class TableMetadataGone(TableUnavailable):
    """The newest metadata of a table is gone, at a location that the lease database names."""

    def __init__(self, at: str) -> None:
        super().__init__(
            f"There is no {at}, the newest metadata of the table by the lease database, which was "
            "restored from an older copy, perhaps: have the table follow the ledger with "
            "`leasehold table create --adopt`."
        )
        self.at = at


class TableElsewhere(TableMetadataGone):
    """The lease database names metadata of a table that is not where the stream's output is."""

    def __init__(self, at: str, output: str) -> None:
        TableUnavailable.__init__(
            self,
            f"The table is at {at}, and the stream's output at {output}: if the output was moved "
            "or copied, have its table follow with `leasehold table move`; otherwise set the "
            "setting output back.",
        )
        self.at = at


class OutputNotOwned(UserMistake):
    """Another lease store writes its output into this folder, and removes unknown files."""


class OutputUnwritable(LeaseholdError):
    """Output of a shard cannot be written where it belongs."""


class BatchIncomplete(LeaseholdError):
    """The parts of a batch that were made side by side are not the batch."""
