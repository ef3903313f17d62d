"""Between columns and rows, in both directions: journal, ledger, outbox, gaps and summaries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.columns import NAME_LENGTH_MAX
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Gap, JournalEntry, OutboxEvent
from dagster_leasehold.lease_store.ledger_rows import (
    Batch,
    BatchState,
    BatchStatistics,
    DataFile,
    LedgerHead,
    ShardTotals,
    Throughput,
)
from dagster_leasehold.lease_store.rules.event_spans import span_of
from dagster_leasehold.lease_store.rules.journal_proof import End, Opening
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.transitions import Note
from dagster_leasehold.lease_store.shard_summary import Expired, ShardSummary
from dagster_leasehold.lease_store.sql_store.lease_mapping import Row, key_values, node_name
from dagster_leasehold.lease_store.times import stored_time, time_text

REASON_LENGTH_MAX = 1_000


FILE_TIMES = ("first_event_time", "last_event_time")


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
        from_owner=node_name(row["from_owner"]),
        to_owner=node_name(row["to_owner"]),
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
    # An hour has thousands of files: pendulum would take longer for their times than the database
    # for their rows, and nobody reads them here.
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


def summary_values(summary: ShardSummary) -> dict[str, Any]:
    """A summary's columns, its key and version aside."""
    opening = summary.opening
    return {
        "journal_until": summary.journal_until,
        "entries": dict(summary.entries),
        "epoch": summary.epoch,
        "opened": opening.sequence if opening else None,
        "opened_epoch": opening.epoch if opening else None,
        "opened_run": opening.run if opening else "",
        "opened_by": opening.owner if opening else None,
        "open": summary.open,
        "proven_until": summary.proven_until,
        "proven_epoch": summary.proven_epoch,
        "folded_until": summary.folded_until,
        "skips": [list(skip) for skip in summary.skips],
        "violations": [list(finding) for finding in summary.violations],
        "expired": None if summary.expired is None else _expired_values(summary.expired),
    }


def _expired_values(expired: Expired) -> dict[str, Any]:
    last = expired.last
    return {
        "number": last.number,
        "cursor": last.cursor,
        "epoch": last.epoch,
        "batches": expired.batches,
        "records": expired.records,
        "events_since": expired.events_since and time_text(expired.events_since),
        "events_until": expired.events_until and time_text(expired.events_until),
    }


def _expired_from(values: Mapping[str, Any]) -> Expired:
    since, until = values["events_since"], values["events_until"]
    return Expired(
        last=End(values["number"], values["cursor"], values["epoch"]),
        batches=values["batches"],
        records=values["records"],
        events_since=None if since is None else stored_time(since),
        events_until=None if until is None else stored_time(until),
    )


def summary_from(row: Row) -> ShardSummary:
    """A summary from its row."""
    opening = None
    if row["opened"] is not None:
        owner = row["opened_by"]
        opening = Opening(
            sequence=row["opened"],
            epoch=row["opened_epoch"],
            run=row["opened_run"],
            owner=None if owner is None else NodeName(owner),
        )
    return ShardSummary(
        shard=ShardId(row["shard_id"]) if row["shard_id"] else None,
        version=row["version"],
        journal_until=row["journal_until"],
        entries=row["entries"],
        epoch=row["epoch"],
        opening=opening,
        open=bool(row["open"]),
        proven_until=row["proven_until"],
        proven_epoch=row["proven_epoch"],
        folded_until=row["folded_until"],
        skips=tuple((start, end) for start, end in row["skips"]),
        violations=tuple((rule, detail) for rule, detail in row["violations"]),
        expired=None if row["expired"] is None else _expired_from(row["expired"]),
    )
