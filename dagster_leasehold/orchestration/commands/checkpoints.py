"""`leasehold checkpoint get` and `set`: shows checkpoints, or forces one."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import listed, shown
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.reopening import Reopening, concerned
from dagster_leasehold.lease_store.rules.withdrawal import NUMBERS_END, first_withdrawn
from dagster_leasehold.orchestration.commands.options import OBSERVER, AnyShard, Shard
from dagster_leasehold.orchestration.commands.target import GroupChoice, NamedGroup, Target
from dagster_leasehold.orchestration.presentation import show_json, show_result, show_table

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
    from dagster_leasehold.lease_store.ledger_rows import Batch
    from dagster_leasehold.lease_store.outcomes import Changed
    from dagster_leasehold.lease_store.shard_rows import ShardLease
    from dagster_leasehold.shard_sources.source import ShardSource

app = typer.Typer(help="Show checkpoints, or force one.", no_args_is_help=True)


@app.command()
def get(choice: GroupChoice, shard: AnyShard = None) -> None:
    """Show the checkpoint of one shard or of all shards."""
    target, key = choice.opened()
    rows = [
        {"shard": lease.shard, "check_point": lease.check_point, "epoch": lease.consumer_epoch}
        for lease in target.leases(key, None if shard is None else [shard])
    ]
    if choice.as_json:
        show_json(rows)
        return
    show_table(
        f"Checkpoints of {key}", "shard, >checkpoint, >epoch", (tuple(row.values()) for row in rows)
    )


@app.command("set")
def set_(
    choice: NamedGroup,
    shard: Shard,
    cursor: Annotated[
        str, typer.Argument(metavar="CURSOR", help="A cursor, begin, end or an ISO 8601 time.")
    ],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Confirm that records can be skipped or read again.")
    ] = False,
    reopen: Annotated[
        Reopening,
        typer.Option(
            "--reopen",
            help="If the shard is over and its children were read: refuse; read it and then its "
            "children again (cascade); or read only this shard again, out of order (accept).",
        ),
    ] = Reopening.REFUSE,
    reason: Annotated[
        str, typer.Option("--reason", help="The reason, for the journal.")
    ] = "set by an operator",
) -> None:
    """Force a shard's checkpoint, which starts a new epoch.

    Committed output after the new checkpoint is withdrawn, so that no record is in the output
    twice.
    """
    target, key = choice.opened()
    lease = target.shard(key, shard)
    if not force:
        raise errors.CheckpointRefused(
            f"Only the holder of shard {shown(shard)} changes its checkpoint: add --force to set "
            "it yourself, which skips records or reads them again."
        )
    position = cursor_of(target.declared(key.stream).source, lease.shard, cursor)
    changed = force_checkpoint(target, key, lease.shard, position, reason=reason, reopen=reopen)
    others = sorted((each for each in changed.shards if each != lease.shard), key=rank_key)
    facts = {"group": str(key), "shard": lease.shard, "from": lease.check_point, "to": position}
    sentences = [
        f"Checkpoint of shard {lease.shard} of {key}: {lease.check_point or '-'} -> {position}."
        if changed.shards
        else f"Shard {lease.shard} of {key} is already finished at {position}."
    ]
    if others:
        sentences.append(f"These shards are also read again: {listed(others)}.")
    show_result(facts | {"begin_again": others}, *sentences, as_json=choice.as_json)


def force_checkpoint(
    target: Target, key: GroupKey, shard: ShardId, cursor: str, *, reason: str, reopen: Reopening
) -> Changed:
    """Force a shard's checkpoint; the files of withdrawn batches stay readable for a while."""
    _touch_withdrawn(target, key, shard, cursor, reopen)
    return target.store.force_checkpoint(
        key, shard, cursor, observer=OBSERVER, reason=reason, reopen=reopen
    )


def _touch_withdrawn(
    target: Target, key: GroupKey, shard: ShardId, cursor: str, reopen: Reopening
) -> None:
    """Touch the files of the batches to withdraw, so that vacuum keeps them for a while.

    Readers that have listed these files need time to read them.
    """
    from dagster_leasehold.assets.output.attempts import touch_replaced

    rows = {row.shard: row for row in target.store.snapshot(key).shards}
    head, *descendants = concerned(rows, shard)
    border = border_at(target, key, rows[head], cursor)
    numbers = range(border.sequence, NUMBERS_END) if border is not None else range(0)
    withdrawn = target.store.each_batch(key, head, numbers=numbers)
    for each in descendants if reopen is Reopening.CASCADE else ():
        withdrawn = chain(withdrawn, target.store.each_batch(key, each))
    output = target.own_output(key)
    touch_replaced(output, (file for batch in withdrawn for file in batch.files))


def border_at(target: Target, key: GroupKey, lease: ShardLease, cursor: str) -> Batch | None:
    """Return the first batch that a checkpoint at `cursor` withdraws; None without one."""
    from dagster_leasehold.assets.output.expired_output import expired_output

    ledger = partial(target.store.each_batch, key, lease.shard)
    expired = expired_output(target.store, key, [lease.shard]).get(lease.shard)
    begin = expired.begin if expired is not None else None
    return first_withdrawn(lease, ledger, cursor, key=key, begin=begin)


def cursor_of(source: ShardSource, shard: ShardId, text: str) -> str:
    """Return the cursor in a shard for a text: `begin`, `end`, a time or a cursor."""
    from dagster_leasehold.lease_store.times import parse_time
    from dagster_leasehold.shard_sources.source import Limits, Position

    if text in (Position.BEGIN, Position.END):
        return source.cursor_at(shard, Position(text))
    refusal: errors.LeaseholdError | None = None
    try:
        # Planning from a cursor validates it; no record is read.
        source.plan(shard, text, Limits(records_max=1))
        return text
    except (errors.UserMistake, errors.SourceError, ValueError) as error:
        refusal = error if isinstance(error, errors.LeaseholdError) else None
    at = parse_time(text)
    if at is None:
        bounds = source.bounds([shard])[shard]
        raise errors.CheckpointRefused(
            f"{shown(text)} is not a cursor of shard {shown(shard)}, whose range is {bounds.begin} "
            f"to {bounds.end}: use a cursor in this range, begin, end or an ISO 8601 time."
        ) from refusal
    return source.cursor_at(shard, at)
