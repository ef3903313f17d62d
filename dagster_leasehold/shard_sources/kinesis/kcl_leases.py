"""Leases of the Kinesis Client Library (KCL), as rows of its table in DynamoDB: pure rules.

A row is a lease of one shard. Its checkpoint is the last record that was processed, where a cursor
here is the next one to read. Versions 2 and 3 keep the same columns for that; version 3 adds some
of its own, and can keep rows of other kinds in the table, which name their `entityType`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing

SHARD_END, TRIM_HORIZON = "SHARD_END", "TRIM_HORIZON"
UNSTORED = ("LATEST", "AT_TIMESTAMP")


@dataclass(frozen=True, slots=True)
class KclLease:
    """One row of a lease table.

    Attributes:
        stream: `account:stream:epoch` in the table of an application that reads several streams;
            empty in that of one stream.
        checkpoint: a sequence number, or one of KCL's own words.
        part: the number of the processed record among those packed into that one.
        pending: True if the application prepared a checkpoint, and has not made it.
        hash_begin: the first hash of the shard; None where the row does not tell.
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
        """Return the lease of a row as DynamoDB gives it; None for a row of another kind.

        Raises:
            CheckpointRefused: the row has no lease's columns.
        """
        if _text(row, "entityType") not in ("", "LEASE"):
            return None
        key, checkpoint = _text(row, "leaseKey"), _text(row, "checkpoint")
        stream, _, shard = key.rpartition(":")
        numeric = checkpoint.isascii() and checkpoint.isdecimal()
        if not shard or not (numeric or checkpoint in (SHARD_END, TRIM_HORIZON, *UNSTORED)):
            raise CheckpointRefused(
                f"A row of the lease table is no lease of KCL's: leaseKey {shown(key)}, checkpoint "
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
    """Return the leases of one stream by shard, from a table that can hold several streams.

    Args:
        leases: all of the table.
        table: its name.
        stream: the name or the ARN of the stream.

    Raises:
        UnknownGroup: there is none of the stream.
        CheckpointRefused: streams of several accounts, or made at several times, have this name.
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
            + (f"; it has those of: {', '.join(streams)}." if streams else ".")
        )
    if len({lease.stream for lease in own}) > 1:
        raise CheckpointRefused(
            f"The lease table {shown(table)} has leases of several streams of the name "
            f"{shown(name)}: {', '.join(streams)}; name the stream by its ARN in its options."
        )
    return {lease.shard: lease for lease in own}


def finished_shards(
    leases: Mapping[ShardId, KclLease], listed: Mapping[ShardId, ShardListing]
) -> set[ShardId]:
    """Return the shards that were read to their end.

    KCL deletes the lease of a finished shard once its children are being read, and makes none for
    shards before its initial position: a shard without a lease that another's lease descends from
    is not read any more.
    """
    finished = {shard for shard, lease in leases.items() if lease.checkpoint == SHARD_END}
    descendants = [*leases]
    for shard in descendants:
        parents = {*(leases[shard].parents if shard in leases else ())}
        parents |= {*(listed[shard].parents if shard in listed else ())}
        older = parents - leases.keys() - finished
        finished |= older
        descendants += older
    return finished
