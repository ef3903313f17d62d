"""The errors of consumption and output: Spark, Java, transforms, files and tables.

They derive from `LeaseholdError`; each message says what happened and what to do.
"""

from __future__ import annotations

from dagster_leasehold.lease_store.errors import LeaseholdError, UserMistake


class DagsterUnsupported(UserMistake):
    """This release of Dagster lacks something that Leasehold needs."""


class SparkUnavailable(LeaseholdError):
    """Spark could not be started or reached."""


class SparkNotReady(SparkUnavailable):
    """Spark started no task of a job, because it could not be reached or had no free core."""


class SessionLost(SparkUnavailable):
    """The Spark session or its server is gone; a new session can work."""


class SparkFeatureMissing(SparkUnavailable):
    """This Spark lacks a feature that the work needs; another Spark may have it."""


class JavaNotFound(UserMistake):
    """No Java was found that Spark can run on."""


class SweepInterrupted(LeaseholdError):
    """A Spark job was interrupted on purpose, because its run can no longer commit its result."""


class TransformError(UserMistake):
    """The user's transform raised, or returned something that cannot be committed."""


class TransformUnusable(TransformError):
    """The user's transform cannot be applied to any record."""


class SchemaUnusable(TransformUnusable):
    """The schema of records is not valid, or no table can have its columns."""


class RegistryUnavailable(LeaseholdError):
    """A schema registry cannot be reached, or refuses access."""


class RecordBlocks(LeaseholdError):
    """A shard is on hold at a record that makes every run hang or crash."""


class QuarantineLimitExceeded(UserMistake):
    """More records of a batch could not be parsed than the stream allows."""


class OutputUnreadable(UserMistake):
    """Committed output cannot be read as requested."""


class RewriteRefused(UserMistake):
    """Committed output of a shard cannot be replaced by this request, or not now."""


class WindowIncomplete(UserMistake):
    """A shard can still deliver records of this window of event time."""


class ColumnsUnchangeable(UserMistake):
    """A requested change of a table's columns cannot be applied."""


class TableUnavailable(LeaseholdError):
    """A published table or its catalog cannot be reached, or the table is not the stream's."""


class PublicationHeld(TableUnavailable):
    """A publication check holds output that a reader waits for."""


class PublicationRefused(TableUnavailable):
    """A catalog refused a publication, which is retried or replaced after a back-off."""


class TooManyRoutes(LeaseholdError):
    """A batch has more new routes than the stream can add."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"A batch has more new routes than routes_max, {limit:,}, allows, so it was not "
            "committed: the next run reads it again, and further routes count as unknown."
        )


class TooManyFiles(LeaseholdError):
    """A table has more files, or its ledger more batches, than the caller's limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The table or its ledger has more than {limit:,} files or batches.")


class TableMetadataGone(TableUnavailable):
    """The metadata file that the lease database names as a table's newest does not exist."""

    def __init__(self, at: str) -> None:
        super().__init__(
            f"There is no {at}, which the lease database names as the newest metadata of the "
            "table. Perhaps the database was restored from an older copy: make the table follow "
            "the ledger with `leasehold table create --adopt`."
        )
        self.at = at


class TableElsewhere(TableMetadataGone):
    """The lease database names a table metadata file outside the stream's output folder."""

    def __init__(self, at: str, output: str) -> None:
        TableUnavailable.__init__(
            self,
            f"The table is at {at}, and the stream's output is at {output}. If the output was "
            "moved or copied, make its table follow with `leasehold table move`. Otherwise change "
            "the setting `output` back.",
        )
        self.at = at


class OutputNotOwned(UserMistake):
    """Another lease store uses this output folder, and would remove our files as unknown."""


class OutputUnwritable(LeaseholdError):
    """The output of a shard cannot be written to its folder."""


class BatchIncomplete(LeaseholdError):
    """The parts of a batch that were processed in parallel do not add up to the batch."""
