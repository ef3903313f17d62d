"""`leasehold group pause`, `drain` and `resume`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import listed
from dagster_leasehold.orchestration.commands.groups import app
from dagster_leasehold.orchestration.commands.options import OBSERVER
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target
from dagster_leasehold.orchestration.presentation import say, show_json, show_result, show_table

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.draining import Draining, ShardDrain
    from dagster_leasehold.lease_store.identifiers import GroupKey


def _set_paused(target: Target, key: GroupKey, *, paused: bool) -> None:
    group = target.group(key.stream, key.group)
    if group.paused is not paused:
        target.store.update_group(dataclasses.replace(group, paused=paused), observer=OBSERVER)


@app.command()
def pause(choice: NamedGroup) -> None:
    """Pause a consumer group: its holders stop at their next batch boundary."""
    target, key = choice.opened()
    _set_paused(target, key, paused=True)
    show_result(
        {"stream": key.stream, "group": key.group, "paused": True},
        f"Paused consumer group {key}; holders stop at their next batch boundary.",
        as_json=choice.as_json,
    )


@app.command()
def drain(
    choice: NamedGroup,
    *,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0, help="The longest wait, in seconds.")
    ] = 300.0,
) -> None:
    """Pause a consumer group, and wait until its runs have closed all shards at a checkpoint.

    Exits with 1 after the timeout. The group stays paused until `group resume`.
    """
    import time

    from dagster_leasehold.lease_store.draining import wait_until_drained

    target, key = choice.opened()
    _set_paused(target, key, paused=True)
    began, store = time.monotonic(), target.store
    draining = wait_until_drained(
        lambda: store.draining(key),
        timeout_s=timeout_s,
        clock=time.monotonic,
        sleep=time.sleep,
        report=(lambda _: None) if choice.as_json else say_open,
    )
    waited_s = time.monotonic() - began
    if choice.as_json:
        print_drained_json(key, draining, waited_s)
    else:
        print_drained(key, draining, waited_s)
    if not draining.drained:
        raise typer.Exit(1)


@app.command()
def resume(choice: NamedGroup) -> None:
    """Resume a paused consumer group."""
    target, key = choice.opened()
    _set_paused(target, key, paused=False)
    show_result(
        {"stream": key.stream, "group": key.group, "paused": False},
        f"Resumed consumer group {key}.",
        as_json=choice.as_json,
    )


def say_open(draining: Draining) -> None:
    """Print the shards that are still open."""
    if draining.open:
        names = listed(shard.shard for shard in draining.open)
        say(f"{len(draining.open)} of {len(draining.shards)} shards are still open: {names}.")


def print_drained_json(key: GroupKey, draining: Draining, waited_s: float) -> None:
    """Print the result as JSON, with each shard's checkpoint and its open tenure or intent."""
    show_json(
        {
            "group": str(key),
            "drained": draining.drained,
            "paused": draining.paused,
            "waited_s": round(waited_s, 3),
            "shards": [_drain_row(shard) for shard in draining.shards],
        }
    )


def _drain_row(shard: ShardDrain) -> dict[str, object]:
    intent = shard.intent
    return {
        "shard": shard.shard,
        "state": shard.state,
        "check_point": shard.check_point,
        "drained": shard.drained,
        "holder": shard.holder,
        "run": shard.run,
        "intent": {"batch": intent.batch_id, "start": intent.start, "end": intent.end}
        if intent
        else None,
    }


def print_drained(key: GroupKey, draining: Draining, waited_s: float) -> None:
    """Print the result as a table and sentences."""
    show_table(
        f"Shards of {key}",
        "shard, state, >checkpoint, open in run, holder",
        (
            (shard.shard, shard.state, shard.check_point, shard.run, shard.holder)
            for shard in draining.shards
        ),
    )
    for shard in draining.shards:
        if shard.intent is not None and shard.drained:
            say(
                f"Shard {shard.shard}: a run started batch {shard.intent.batch_id} "
                f"({shard.intent.start} to {shard.intent.end}) and ended before it committed the "
                "batch. The next run reads the batch again."
            )
    if draining.drained:
        say(
            f"{key} was drained after {waited_s:.1f} s: the group is paused, no shard is open, and "
            "all checkpoints are durable."
        )
    elif not draining.paused:
        say(f"{key} was resumed in the meantime: drain it again.")
    else:
        names = listed(shard.shard for shard in draining.open)
        say(
            f"{key} is paused, but after {waited_s:.1f} s these shards are still open: {names}. "
            "Their runs stop at the next batch boundary. Shards of a dead node are closed once the "
            "node has been evicted."
        )
