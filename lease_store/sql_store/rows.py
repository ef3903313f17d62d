"""Between database rows and records, in both directions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    BatchStatistics,
    DataFile,
    LedgerHead,
    RewriteClaim,
    RewriteKind,
    ShardTotals,
    Throughput,
)
from dagster_leasehold.lease_store.rules.event_spans import span_of
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.transitions import Note
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease
from dagster_leasehold.lease_store.sql_store.statements import GROUP_PREFIX
from dagster_leasehold.lease_store.tables import NAME_LENGTH_MAX

Row = Mapping[Any, Any]
REASON_LENGTH_MAX = 1_000
FILE_TIMES = ("first_event_time", "last_event_time")


def key_values(key: GroupKey) -> dict[str, Any]:
    """The first two columns of every key."""
    return {"consume_group": key.group, "logstream_sig": key.stream}


def group_values(group: Group) -> dict[str, Any]:
    """A group's settings; its generation has a statement of its own."""
    return {
        "ordered": group.ordered,
        "timeout_s": group.timeout_s,
        "handoff_limit_s": group.handoff_limit_s,
        "assignment": group.assignment.value,
        "initial_position": group.initial_position,
        "node_cap": group.node_cap,
        "weighted": group.weighted,
        "paused": group.paused,
        "gap_policy": group.gap_policy.value,
    }


def group_from(row: Row, prefix: str = "") -> Group:
    """A group from its row, or from a joined one with prefixed names."""
    return Group(
        key=GroupKey.parse(row[prefix + "consume_group"], row[prefix + "logstream_sig"]),
        ordered=bool(row[prefix + "ordered"]),
        timeout_s=row[prefix + "timeout_s"],
        handoff_limit_s=row[prefix + "handoff_limit_s"],
        assignment=AssignmentMode(row[prefix + "assignment"]),
        initial_position=row[prefix + "initial_position"],
        node_cap=row[prefix + "node_cap"],
        weighted=bool(row[prefix + "weighted"]),
        paused=bool(row[prefix + "paused"]),
        gap_policy=GapPolicy(row[prefix + "gap_policy"]),
        generation=row[prefix + "generation"],
    )


def joined_group(row: Row) -> Group:
    """The group of a `pulse` row."""
    return group_from(row, GROUP_PREFIX)


def node_values(node: Node) -> dict[str, Any]:
    """A node's columns, its key aside."""
    return {
        "lease_id": node.lease_id,
        "incarnation": node.incarnation,
        "address": node.address,
        "source_count": node.source_count,
        "node_id": node.node_id,
        "pinned": node.pinned,
        "accepts_runs": node.accepts_runs,
    }


def node_from(row: Row) -> Node:
    """A node from its row."""
    pinned = row["pinned"]
    return Node(
        name=NodeName(row["worker_instance"]),
        lease_id=row["lease_id"],
        incarnation=row["incarnation"],
        address=row["address"],
        source_count=row["source_count"],
        node_id=row["node_id"],
        pinned=None if pinned is None else {ShardId(shard): at for shard, at in pinned.items()},
        accepts_runs=bool(row["accepts_runs"]),
    )


def shard_values(shard: ShardLease) -> dict[str, Any]:
    """A shard's columns, its key aside."""
    return {
        "lease_id": shard.lease_id,
        "lease_owner": shard.lease_owner,
        "consumer_owner": shard.consumer_owner,
        "check_point": shard.check_point,
        "state": shard.state.value,
        "consumer_epoch": shard.consumer_epoch,
        "consumer_run": shard.consumer_run,
        "handoff_eta_s": shard.handoff_eta_s,
        "parents": list(shard.parents),
        "hash_begin": shard.hash_begin,
        "hash_end": shard.hash_end,
        "read_only": shard.read_only,
        "subscribable": shard.subscribable,
        "watermark": shard.watermark,
        "bootstrap": shard.bootstrap,
        "gone_parents": list(shard.gone_parents) or None,
    }


def shard_from(row: Row) -> ShardLease:
    """A shard from its row."""
    return ShardLease(
        shard=ShardId(row["shard_id"]),
        state=ShardState(row["state"]),
        lease_id=row["lease_id"],
        lease_owner=_node_name(row["lease_owner"]),
        consumer_owner=_node_name(row["consumer_owner"]),
        check_point=row["check_point"],
        consumer_epoch=row["consumer_epoch"],
        consumer_run=row["consumer_run"],
        handoff_eta_s=row["handoff_eta_s"],
        parents=tuple(ShardId(parent) for parent in row["parents"]),
        hash_begin=row["hash_begin"],
        hash_end=row["hash_end"],
        read_only=bool(row["read_only"]),
        subscribable=bool(row["subscribable"]),
        watermark=row["watermark"],
        bootstrap=row["bootstrap"],
        gone_parents=tuple(ShardId(parent) for parent in row["gone_parents"] or ()),
    )


def progress_from(row: Row) -> Progress:
    """A served shard's progress from the columns of its row that it needs."""
    return Progress(
        shard=ShardId(row["shard_id"]),
        check_point=row["check_point"],
        consumer_epoch=row["consumer_epoch"],
        consumer_run=row["consumer_run"],
    )


def _node_name(text: str | None) -> NodeName | None:
    return None if text is None else NodeName(text)


def note_values(
    key: GroupKey, note: Note, *, observer: str, at: datetime, transaction_id: str
) -> dict[str, Any]:
    """A journal row."""
    return key_values(key) | {
        "kind": note.kind,
        "reason": note.reason[:REASON_LENGTH_MAX],
        "observer": observer.encode()[:NAME_LENGTH_MAX].decode(errors="ignore"),
        "recorded_at": at,
        "shard_id": note.shard,
        "edge": note.edge,
        "from_state": note.from_state.value if note.from_state else None,
        "to_state": note.to_state.value if note.to_state else None,
        "from_owner": note.from_owner,
        "to_owner": note.to_owner,
        "epoch": note.epoch,
        "run": note.run,
        "check_point": note.check_point,
        "transaction_id": transaction_id,
    }


def entry_from(row: Row) -> JournalEntry:
    """A journal entry from its row."""
    return JournalEntry(
        sequence=row["sequence"],
        kind=row["kind"],
        reason=row["reason"],
        observer=row["observer"],
        at=row["recorded_at"],
        shard=None if row["shard_id"] is None else ShardId(row["shard_id"]),
        edge=row["edge"],
        from_state=ShardState(row["from_state"]) if row["from_state"] else None,
        to_state=ShardState(row["to_state"]) if row["to_state"] else None,
        from_owner=_node_name(row["from_owner"]),
        to_owner=_node_name(row["to_owner"]),
        epoch=row["epoch"],
        run=row["run"],
        check_point=row["check_point"],
    )


def batch_values(batch: Batch) -> dict[str, Any]:
    """A ledger row's columns, its key aside."""
    return {
        "start_cursor": batch.start,
        "end_cursor": batch.end,
        "state": batch.state.value,
        "epoch": batch.epoch,
        "run": batch.run,
        "holder": batch.holder,
        "attempt": batch.attempt,
        "generation": batch.generation,
        "finished": batch.finished,
        "committed_at": batch.committed_at,
        "last_sequence": batch.last_sequence,
        "last_epoch": batch.last_epoch,
        "batches": batch.batches,
        **output_values(batch.files, batch.statistics),
    }


def output_values(files: tuple[DataFile, ...], statistics: BatchStatistics) -> dict[str, Any]:
    """The columns of a ledger row that describe the batch's output."""
    return {
        "files": [file_values(file) for file in files],
        "records": statistics.records,
        "bytes": statistics.bytes,
        "written": statistics.written,
        "quarantined": statistics.quarantined,
        "first_event_time": statistics.first_event_time,
        "last_event_time": statistics.last_event_time,
        "event_span": span_of(files),
    }


def file_values(file: DataFile) -> dict[str, Any]:
    """A file as the ledger's JSON holds it; what is not known is left out."""
    values = asdict(file)
    for name in FILE_TIMES:
        time = values.pop(name)
        if time is not None:
            values[name] = time.isoformat()
    return values


def file_from(values: dict[str, Any]) -> DataFile:
    """A file from the ledger's JSON."""
    read: dict[str, Any] = dict(values)
    for name in FILE_TIMES:
        if name in read:
            read[name] = datetime.fromisoformat(read[name])
    return DataFile(**read)


def files_from(values: str | list[dict[str, Any]]) -> tuple[DataFile, ...]:
    """Files from the ledger's JSON, or from its text where that is not decoded yet."""
    decoded = json.loads(values) if isinstance(values, str) else values
    return tuple(file_from(file) for file in decoded)


def batch_from(row: Row) -> Batch:
    """A batch from its ledger row."""
    return Batch(
        shard=ShardId(row["shard_id"]),
        sequence=row["sequence"],
        start=row["start_cursor"],
        end=row["end_cursor"],
        state=BatchState(row["state"]),
        epoch=row["epoch"],
        run=row["run"],
        holder=NodeName(row["holder"]),
        attempt=row["attempt"],
        generation=row["generation"],
        files=files_from(row["files"]),
        statistics=BatchStatistics(
            records=row["records"],
            bytes=row["bytes"],
            written=row["written"],
            quarantined=row["quarantined"],
            first_event_time=row["first_event_time"],
            last_event_time=row["last_event_time"],
        ),
        finished=bool(row["finished"]),
        committed_at=row["committed_at"],
        last_sequence=row["last_sequence"],
        last_epoch=row["last_epoch"],
        batches=row["batches"],
    )


def head_from(row: Row) -> LedgerHead:
    """A shard's head from its row and its newest ledger row."""
    number, intended = row["sequence"], row["state"] == BatchState.INTENT
    if number is not None and row["last_sequence"] is not None:
        number = row["last_sequence"]
    return LedgerHead(
        shard=ShardId(row["shard_id"]),
        check_point=row["check_point"],
        next_number=0 if number is None else number + (not intended),
        intent=row["run"] if intended else None,
        version=row["ledger_version"],
    )


def totals_from(row: Row) -> ShardTotals:
    """A shard's totals from its row."""
    return ShardTotals(
        shard=ShardId(row["shard_id"]),
        batches=row["committed_batches"],
        records=row["committed_records"],
        bytes=row["committed_bytes"],
        quarantined=row["quarantined_records"],
    )


def throughput_from(row: Row) -> Throughput:
    """A shard's throughput from a row that adds its batches up."""
    return Throughput(
        shard=ShardId(row["shard_id"]),
        batches=row["batches"],
        # MariaDB adds integers up to a decimal.
        records=int(row["records"]),
        first_at=row["first_at"],
        last_at=row["last_at"],
    )


def event_from(row: Row) -> OutboxEvent:
    """An outbox event from its row."""
    return OutboxEvent(
        sequence=row["sequence"],
        kind=row["kind"],
        shard=ShardId(row["shard_id"]),
        batch_id=row["batch_id"],
        payload=row["payload"],
        run=row["run"],
        attempts=row["attempts"],
        error=row["error"],
    )


def event_values(event: OutboxEvent, at: datetime) -> dict[str, Any]:
    """A new event's columns; `at` is for the judgement of its age once it is delivered."""
    return {
        "shard_id": event.shard,
        "kind": event.kind,
        "batch_id": event.batch_id,
        "payload": event.payload,
        "run": event.run,
        "delivered": False,
        "attempts": 0,
        "error": "",
        "recorded_at": at,
    }


def rewrite_claim_from(row: Row) -> RewriteClaim:
    """A claim from its row."""
    return RewriteClaim(
        shard=ShardId(row["shard_id"]),
        run=row["run"],
        kind=RewriteKind(row["kind"]),
        at=row["claimed_at"],
    )


def gap_values(gap: Gap) -> dict[str, Any]:
    """A gap's columns, its shard aside."""
    return {
        "start_cursor": gap.start,
        "end_cursor": gap.end,
        "reason": gap.reason[:REASON_LENGTH_MAX],
        "recorded_at": gap.at,
        "acknowledged": gap.acknowledged,
        "skipped": gap.skipped,
    }


def gap_from(row: Row) -> Gap:
    """A gap from its row."""
    return Gap(
        shard=ShardId(row["shard_id"]),
        start=row["start_cursor"],
        end=row["end_cursor"],
        reason=row["reason"],
        at=row["recorded_at"],
        acknowledged=bool(row["acknowledged"]),
        skipped=bool(row["skipped"]),
    )
