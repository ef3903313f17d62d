"""`leasehold where`: finds the snapshot of a record, and shows the cursors of a snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.commands.target import GroupChoice
from dagster_leasehold.orchestration.presentation import cell, say, show_json, show_table

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.whereabouts import RecordPlace


def where(
    choice: GroupChoice,
    shard: options.AnyShard = None,
    cursor: Annotated[
        str | None, typer.Argument(metavar="CURSOR", help="The cursor of a record.")
    ] = None,
    *,
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="ID", help="A snapshot of the table.")
    ] = None,
) -> None:
    """Show the batch, run, file and snapshot of a record, or the cursors of a snapshot.

    Without CURSOR, shows up to which cursor a snapshot has the records of each shard. The snapshot
    is the newest one, or the one of `--snapshot`.
    """
    from dagster_leasehold.assets.output.table.whereabouts import Whereabouts

    target, key = choice.opened()
    place = target.output(key)
    lookup = Whereabouts(target.store, key, place, target.settings.catalog_settings)
    shard_id = target.named_shard(key, shard)
    if cursor is not None and shard_id is not None:
        record = lookup.record(shard_id, cursor)
        if choice.as_json:
            show_json(record)
        else:
            _say(record)
        return
    contents = lookup.contents(snapshot)
    shards = sorted(contents.cursors, key=rank_key)
    cursors = {s: contents.cursors[s] for s in shards if shard_id in (None, s)}
    if choice.as_json:
        show_json(replace(contents, cursors=cursors))
        return
    until = contents.complete_until
    complete = "unknown" if until is None else cell(until)
    say(f"Snapshot {contents.snapshot_id} of publication {contents.publication}.")
    say(f"Complete up to event time: {complete}.")
    show_table(f"Ends of the shards of {key}", "shard, >end", cursors.items())


def _say(record: RecordPlace) -> None:
    numbers = str(record.batch)
    if record.last_batch > record.batch:
        numbers += f" to {record.last_batch}"
    say(
        f"Record {record.cursor} of shard {record.shard} is in batch {numbers}, from "
        f"{record.start} up to {record.end}."
    )
    say(f"Run {record.run} committed it at {cell(record.committed_at)}.")
    for path in record.files:
        say(f"File: {path}")
    if not record.files:
        say("The batch has no file: the transform returned none of its records.")
    if record.snapshot_id is None:
        say("It is not published yet.")
        return
    say(
        f"Snapshot: {record.snapshot_id} of {cell(record.published_at)}, publication "
        f"{record.publication}; it is the oldest snapshot with the record."
    )
