"""What `leasehold group drain` says while it waits, and in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_leasehold.orchestration.commands.target import listed
from dagster_leasehold.orchestration.presentation import say, show_json, show_table

if TYPE_CHECKING:
    from dagster_leasehold.lease_store.draining import Draining, ShardDrain
    from dagster_leasehold.lease_store.identifiers import GroupKey


def say_open(found: Draining) -> None:
    """One line of progress: how many shards are still open, and which."""
    if found.open:
        names = listed(shard.shard for shard in found.open)
        say(f"{len(found.open)} of {len(found.shards)} shards are still open: {names}.")


def show_drained(key: GroupKey, found: Draining, waited_s: float) -> None:
    """The outcome as JSON: every shard with its checkpoint and what is left open on it."""
    show_json(
        {
            "group": str(key),
            "drained": found.drained,
            "paused": found.paused,
            "waited_s": round(waited_s, 3),
            "shards": [_record(shard) for shard in found.shards],
        }
    )


def _record(shard: ShardDrain) -> dict[str, object]:
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


def tell_drained(key: GroupKey, found: Draining, waited_s: float) -> None:
    """The outcome for people."""
    show_table(
        f"Shards of {key}",
        ("shard", "state", "checkpoint", "open in run", "holder"),
        (
            (shard.shard, shard.state, shard.check_point, shard.run, shard.holder)
            for shard in found.shards
        ),
        numeric=("checkpoint",),
    )
    for shard in found.shards:
        if shard.intent is not None and shard.drained:
            say(
                f"Shard {shard.shard}: batch {shard.intent.batch_id}, {shard.intent.start} to "
                f"{shard.intent.end}, was begun by a run that ended before it was committed; the "
                "next run reads it again."
            )
    if found.drained:
        say(
            f"{key} is drained after {waited_s:.1f} s: it is paused, no shard is open, and all "
            "checkpoints are durable."
        )
    elif not found.paused:
        say(f"{key} was resumed by somebody else meanwhile: drain it again.")
    else:
        names = listed(shard.shard for shard in found.open)
        say(
            f"{key} is not drained after {waited_s:.1f} s: it is paused, but still open are the "
            f"shards {names}. Their runs stop at their next batch boundary; those of a dead node "
            "are closed once it has been evicted."
        )
