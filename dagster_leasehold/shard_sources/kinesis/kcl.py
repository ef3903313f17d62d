"""An application of the Kinesis Client Library (KCL); its lease table in DynamoDB is only read.

A row of the table is a lease of one shard. Its checkpoint is the last processed record, while a
cursor here is the next record. Versions 2 and 3 share these columns. Version 3 adds columns, and
rows of other kinds with an `entityType`. As in KCL, a lease has expired when its counter has not
changed for the failover time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress
from dagster_leasehold.shard_sources.kinesis.cursors import GONE
from dagster_leasehold.shard_sources.kinesis.service import KinesisService
from dagster_leasehold.shard_sources.kinesis.source import KinesisStream
from dagster_leasehold.shard_sources.source import Position

SHARD_END, TRIM_HORIZON = "SHARD_END", "TRIM_HORIZON"
UNSTORED = ("LATEST", "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class KclLease:
    """One row of a lease table.

    Attributes:
        stream: `account:stream:epoch` if the application reads several streams, otherwise empty.
        checkpoint: a sequence number, or one of KCL's own words.
        part: the index of the processed record within a packed one.
        pending: True if the application prepared a checkpoint and has not stored it.
        hash_begin: the first hash of the shard, if the row contains it.
    """

    shard: ShardId
    stream: str
    owner: str
    counter: int
    checkpoint: str
    part: int
    pending: bool
    parents: tuple[ShardId, ...]
    hash_begin: int | None

    @classmethod
    def from_row(cls, row: Mapping[str, Mapping[str, Any]]) -> Self | None:
        """Return the lease of a row, or None; raise CheckpointRefused for a malformed lease."""
        if _text(row, "entityType") not in ("", "LEASE"):
            return None
        key, checkpoint = _text(row, "leaseKey"), _text(row, "checkpoint")
        stream, _, shard = key.rpartition(":")
        numeric = checkpoint.isascii() and checkpoint.isdecimal()
        if not shard or not (numeric or checkpoint in (SHARD_END, TRIM_HORIZON, *UNSTORED)):
            raise CheckpointRefused(
                f"A row of the table is not a lease of KCL: leaseKey {shown(key)}, checkpoint "
                f"{shown(checkpoint)}; name the application's own table."
            )
        begin = _text(row, "startingHashKey")
        return cls(
            shard=ShardId(shard),
            stream=stream,
            owner=_text(row, "leaseOwner"),
            counter=int(_text(row, "leaseCounter") or 0),
            checkpoint=checkpoint,
            part=int(_text(row, "checkpointSubSequenceNumber") or 0),
            pending=bool(_text(row, "pendingCheckpoint")),
            parents=tuple(map(ShardId, row.get("parentShardId", {}).get("SS", ()))),
            hash_begin=int(begin) if begin else None,
        )


def _text(row: Mapping[str, Mapping[str, Any]], column: str) -> str:
    value = row.get(column, {})
    return str(value.get("S", value.get("N", "")))


def leases_of(leases: Iterable[KclLease], table: str, stream: str) -> dict[ShardId, KclLease]:
    """Return the leases of one stream, by its name or ARN, from all leases of a table.

    Raises:
        UnknownGroup: the table has no lease of the stream.
        CheckpointRefused: several streams of this name have leases.
    """
    every = list(leases)
    name = stream.rpartition("/")[2]
    account = stream.split(":")[4] if stream.startswith("arn:") else ""
    own = [
        lease
        for lease in every
        if not lease.stream
        or (lease.stream.split(":")[1:2] == [name] and account in ("", lease.stream.split(":")[0]))
    ]
    streams = sorted({lease.stream for lease in every})
    if not own:
        raise UnknownGroup(
            f"The lease table {shown(table)} has no lease of stream {shown(name)}"
            + (f"; it has leases of: {', '.join(streams)}." if streams else ".")
        )
    if len({lease.stream for lease in own}) > 1:
        raise CheckpointRefused(
            f"The lease table {shown(table)} has leases of several streams with the name "
            f"{shown(name)}: {', '.join(streams)}; name the stream by its ARN in its options."
        )
    return {lease.shard: lease for lease in own}


def finished_shards(
    leases: Mapping[ShardId, KclLease], listings: Mapping[ShardId, ShardListing]
) -> set[ShardId]:
    """Return the shards that KCL has read to their end.

    KCL deletes the lease of a finished shard once its children are being read, and creates none for
    shards before its initial position. So a shard without a lease is finished if a descendant has
    one.
    """
    finished = {shard for shard, lease in leases.items() if lease.checkpoint == SHARD_END}
    descendants = [*leases]
    for shard in descendants:
        parents = {*(leases[shard].parents if shard in leases else ())}
        parents |= {*(listings[shard].parents if shard in listings else ())}
        ancestors = parents - leases.keys() - finished
        finished |= ancestors
        descendants += ancestors
    return finished


class LeaseTable(KinesisService):
    """A lease table, read with the stream's region and credentials."""

    kind = "dynamodb"

    def stream_argument(self) -> dict[str, object]:
        """Return the request argument that names the table."""
        return {"TableName": self.stream}

    def __str__(self) -> str:
        return f"the DynamoDB table {shown(self.stream)}"

    def leases(self) -> list[KclLease]:
        """Return all leases; raise CheckpointRefused if a row is not a lease."""
        leases: list[KclLease] = []
        page: dict[str, Any] = {}
        while True:
            answer = self.call("scan", ConsistentRead=True, **page)
            leases += filter(None, map(KclLease.from_row, answer["Items"]))
            if not answer.get("LastEvaluatedKey"):
                return leases
            page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


class KclApplication:
    """An application of KCL that reads a stream.

    Args:
        table: the application's lease table, which has the application's name.
        failover_s: seconds after which a lease without renewal has expired.
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
        """Return the positions after the processed records; see `OtherConsumers`."""
        leases, at_work = self._settled_leases()
        listings = {listing.shard: listing for listing in self._source.list_shards()}
        self._check(leases, listings)
        finished = finished_shards(leases, listings)
        unstored = [each.shard for each in leases.values() if each.checkpoint in UNSTORED]
        cursors = {
            shard: self._cursor(shard, leases.get(shard), listings)
            for shard in sorted({*leases, *finished} - {*unstored})
        }
        return GroupProgress(cursors, unstored, at_work)

    def _settled_leases(self) -> tuple[dict[ShardId, KclLease], str]:
        """Return the leases, and a message if workers are renewing them."""
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
        self, leases: Mapping[ShardId, KclLease], listings: Mapping[ShardId, ShardListing]
    ) -> None:
        """Refuse leases of another stream, and leases with a pending checkpoint."""
        for shard, lease in leases.items():
            if lease.pending:
                raise CheckpointRefused(
                    f"The lease of {shard} has a pending checkpoint that the application did not "
                    "store: start the application again, and stop it after its next checkpoint."
                )
            listing = listings.get(shard)
            if listing is None:
                continue
            if lease.hash_begin not in (None, int(listing.hash_begin or "0", 16)):
                raise CheckpointRefused(
                    f"The lease of {shard} begins at hash {lease.hash_begin}, but the shard does "
                    f"not: the table {shown(self._table.stream)} belongs to another stream."
                )
            if lease.checkpoint == SHARD_END and not listing.read_only:
                raise CheckpointRefused(
                    f"The lease of {shard} is at {SHARD_END}, but the shard is open: the table "
                    f"{shown(self._table.stream)} belongs to another stream."
                )

    def _cursor(
        self, shard: ShardId, lease: KclLease | None, listings: Mapping[ShardId, ShardListing]
    ) -> str:
        if shard not in listings:
            return str(GONE)
        if lease is None or lease.checkpoint == SHARD_END:
            return self._source.cursor_at(shard, Position.END)
        if lease.checkpoint == TRIM_HORIZON:
            return self._source.cursor_at(shard, Position.BEGIN)
        return self._source.cursor_after(shard, int(lease.checkpoint), lease.part)
