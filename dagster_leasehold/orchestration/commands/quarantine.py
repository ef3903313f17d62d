"""`leasehold quarantine`: lists records in quarantine, and retries them."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_leasehold.assets.errors import TransformError
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.commands.records import json_record
from dagster_leasehold.orchestration.commands.rewriting import replay_shards
from dagster_leasehold.orchestration.commands.target import GroupChoice, NamedGroup
from dagster_leasehold.orchestration.presentation import say, show_json, show_result, show_table

if TYPE_CHECKING:
    from datetime import datetime

    from dagster_leasehold.assets.output.quarantined import QuarantinedRecord

LIMIT_DEFAULT = 50
VALUE_SHOWN_MAX = 60

app = typer.Typer(
    help="List, skip and retry records that cannot be parsed or that stop every run.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    choice: GroupChoice,
    shard: options.AnyShard = None,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only records with event times from this ISO 8601 time."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Show the first N records.")
    ] = LIMIT_DEFAULT,
) -> None:
    """List records in quarantine, each with its cursor, its raw bytes and its error.

    In JSON, bytes that are not text are encoded as base64.
    """
    from dagster_leasehold.assets.output.quarantined import quarantined_count, quarantined_records

    target, key = choice.opened()
    shard_id = target.named_shard(key, shard)
    folder = target.output(key)
    quarantined = quarantined_records(target.store, key, folder, shard_id, since=_time(since))
    records = list(islice(quarantined, limit))
    count = quarantined_count(target.store, key, shard_id)
    if choice.as_json:
        rows = [json_record(asdict(record)) for record in records]
        show_json({"group": str(key), "quarantined": count, "records": rows})
        return
    place = str(key) if shard_id is None else f"Shard {shard_id} of {key}"
    if not count:
        say(f"{place} has no records in quarantine.")
        return
    show_table(
        f"{place}: {len(records):,} of {count:,} records in quarantine",
        "shard, >cursor, event time, >bytes, value, error",
        (_row(record) for record in records),
    )


def _row(record: QuarantinedRecord) -> tuple[Any, ...]:
    value = record.value or b""
    text = value[: VALUE_SHOWN_MAX * 4].decode("utf-8", errors="backslashreplace")
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    cut = "…" if len(printable) > VALUE_SHOWN_MAX or len(value) > VALUE_SHOWN_MAX * 4 else ""
    return (
        record.shard,
        record.cursor,
        record.event_time,
        len(value),
        printable[:VALUE_SHOWN_MAX] + cut,
        record.error,
    )


def _time(since: str | None) -> datetime | None:
    from dagster_leasehold.lease_store.times import parse_time

    if since is None:
        return None
    at = parse_time(since)
    if at is None:
        raise InvalidSetting(
            f"{shown(since)} is not a time: use an ISO 8601 time for --since, such as "
            "2026-01-31T08:00:00Z."
        )
    return at


@app.command()
def skip(choice: NamedGroup, shard: options.Shard) -> None:
    """Quarantine the record that blocks a shard; the next run continues after it."""
    from dagster_leasehold.lease_store.outcomes import Changed

    target, key = choice.opened()
    row = target.shard(key, shard)
    outcome = target.store.skip_record(key, row.shard, row.check_point, observer=options.OBSERVER)
    skipped = isinstance(outcome, Changed)
    show_result(
        {"group": str(key), "shard": row.shard, "cursor": row.check_point, "skipped": skipped},
        f"The next run quarantines the record at cursor {row.check_point} of shard {row.shard} of "
        f"{key}, and continues after it."
        if skipped
        else f"No record blocks shard {row.shard} of {key}.",
        as_json=choice.as_json,
    )


@app.command()
def retry(
    choice: NamedGroup,
    shards: options.Shards = None,
    *,
    start: options.Start = None,
    end: options.End = None,
    replaces: options.Replaces = None,
) -> None:
    """Replay the batches that have records in quarantine, with the current transform.

    Readers see a shard's old output until all of its batches are replayed, then its new output.
    """
    from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan

    span = ReplaySpan.parse(start, end, quarantined=True)
    target, declared = choice.declared()
    if declared.keeps_records:
        raise TransformError(
            f"Stream {shown(declared.name)} is declared without a transform, so a retry would "
            "change nothing: use -m to give the module that declares the transform."
        )
    replay_shards(
        target,
        declared,
        shards,
        span,
        title=f"Retry of the quarantine of {declared.key}",
        replaces=replaces,
        as_json=choice.as_json,
    )
