"""An application of the Kinesis Client Library (KCL), whose lease table in DynamoDB is only read.

A lease has expired when its counter has not moved for the failover time: KCL itself judges so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dagster_leasehold.lease_store.errors import CheckpointRefused, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress
from dagster_leasehold.shard_sources.kinesis.cursors import GONE
from dagster_leasehold.shard_sources.kinesis.kcl_leases import (
    SHARD_END,
    TRIM_HORIZON,
    UNSTORED,
    KclLease,
    finished_shards,
    leases_of,
)
from dagster_leasehold.shard_sources.kinesis.service import KinesisService
from dagster_leasehold.shard_sources.kinesis.source import KinesisStream
from dagster_leasehold.shard_sources.source import Position


class LeaseTable(KinesisService):
    """A lease table, as `KinesisService` asks for it: with the stream's region and credentials."""

    kind = "dynamodb"

    def stream_argument(self) -> dict[str, object]:
        """Return the argument that names the table in a request."""
        return {"TableName": self.stream}

    def __str__(self) -> str:
        return f"the DynamoDB table {shown(self.stream)}"

    def leases(self) -> list[KclLease]:
        """Return all leases, as they are now.

        Raises:
            LogNotFound: there is no such table.
            SourceError: DynamoDB refuses, or does not answer.
            CheckpointRefused: a row is no lease.
        """
        leases: list[KclLease] = []
        page: dict[str, Any] = {}
        while True:
            answer = self.call("scan", ConsistentRead=True, **page)
            leases += filter(None, map(KclLease.from_row, answer["Items"]))
            if not answer.get("LastEvaluatedKey"):
                return leases
            page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


class KclApplication:
    """An application of KCL's that reads a stream.

    Args:
        source: the stream.
        table: the application's lease table, which has its name.
        failover_s: the time after which a lease that is not renewed has expired, in seconds.
        sleep: waits.
    """

    def __init__(
        self,
        source: KinesisStream,
        table: str,
        failover_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._table = LeaseTable(source.options.model_copy(update={"endpoint_url": None}), table)
        self._failover_s = failover_s
        self._sleep = sleep

    def progress(self) -> GroupProgress:
        """Return the places after the processed records; see `OtherConsumers`."""
        leases, at_work = self._settled_leases()
        listed = {listing.shard: listing for listing in self._source.list_shards()}
        self._check(leases, listed)
        finished = finished_shards(leases, listed)
        unstored = [each.shard for each in leases.values() if each.checkpoint in UNSTORED]
        cursors = {
            shard: self._cursor(shard, leases.get(shard), listed)
            for shard in sorted({*leases, *finished} - {*unstored})
        }
        return GroupProgress(cursors, unstored, at_work)

    def _settled_leases(self) -> tuple[dict[ShardId, KclLease], str]:
        """Return the leases, and the reason to take their workers for running."""
        before = self._own_leases()
        if not any(lease.owner for lease in before.values()):
            return before, ""
        self._sleep(self._failover_s)
        after = self._own_leases()
        moving = sorted(
            shard
            for shard, lease in after.items()
            if shard not in before or lease.counter != before[shard].counter
        )
        if not moving:
            return after, ""
        owners = ", ".join(sorted({after[shard].owner or "-" for shard in moving}))
        return after, (
            f"The leases of {', '.join(moving)} in the table {shown(self._table.stream)} are being "
            f"renewed by {owners}: stop these workers first, or add --live to read twice what they "
            "read from now on."
        )

    def _own_leases(self) -> dict[ShardId, KclLease]:
        return leases_of(self._table.leases(), self._table.stream, self._source.stream)

    def _check(
        self, leases: Mapping[ShardId, KclLease], listed: Mapping[ShardId, ShardListing]
    ) -> None:
        """Refuse leases that are not the stream's, or that say two things at once."""
        for shard, lease in leases.items():
            if lease.pending:
                raise CheckpointRefused(
                    f"The lease of {shard} holds a checkpoint that was prepared and not made: "
                    "start the application once more, and stop it when it has made it."
                )
            listing = listed.get(shard)
            if listing is None:
                continue
            if lease.hash_begin not in (None, int(listing.hash_begin or "0", 16)):
                raise CheckpointRefused(
                    f"The lease of {shard} begins at hash {lease.hash_begin}, the shard elsewhere: "
                    f"the table {shown(self._table.stream)} is of another stream."
                )
            if lease.checkpoint == SHARD_END and not listing.read_only:
                raise CheckpointRefused(
                    f"The lease of {shard} is at {SHARD_END}, but the shard is open: the table "
                    f"{shown(self._table.stream)} is of another stream."
                )

    def _cursor(
        self, shard: ShardId, lease: KclLease | None, listed: Mapping[ShardId, ShardListing]
    ) -> str:
        if shard not in listed:
            return str(GONE)
        if lease is None or lease.checkpoint == SHARD_END:
            return self._source.cursor_at(shard, Position.END)
        if lease.checkpoint == TRIM_HORIZON:
            return self._source.cursor_at(shard, Position.BEGIN)
        return self._source.cursor_after(shard, int(lease.checkpoint), lease.part)
