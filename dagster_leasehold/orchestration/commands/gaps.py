"""`leasehold gap`: lists ranges of records that were removed unread, and accepts their loss."""

from __future__ import annotations

import typer

from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.orchestration.commands.options import OBSERVER, Shard
from dagster_leasehold.orchestration.commands.target import GroupChoice, NamedGroup
from dagster_leasehold.orchestration.presentation import say, show_json, show_result, show_table

app = typer.Typer(
    help="List ranges of records that were removed unread, and accept their loss.",
    no_args_is_help=True,
)


@app.command("list")
def list_(choice: GroupChoice) -> None:
    """List all gaps of a group, including skipped and accepted ones."""
    target, key = choice.opened()
    gaps = sorted(target.store.gaps(key), key=lambda gap: rank_key(gap.shard))
    if choice.as_json:
        show_json(gaps)
        return
    if not gaps:
        say(f"{key} has no gaps.")
        return
    show_table(
        f"Gaps of {key}",
        "shard, >start, >end, checkpoint, accepted, found, reason",
        (
            (
                gap.shard,
                gap.start,
                gap.end,
                "continued after it" if gap.skipped else "held at it",
                gap.acknowledged,
                gap.at,
                gap.reason,
            )
            for gap in gaps
        ),
    )


@app.command()
def ack(choice: NamedGroup, shard: Shard) -> None:
    """Accept the loss of a shard's gaps; a shard that waits at a gap continues after it."""
    target, key = choice.opened()
    shard_id = target.shard(key, shard).shard
    accepted = [
        gap
        for gap in target.store.gaps(key, shard_id, acknowledged=False)
        if isinstance(target.store.acknowledge_gap(key, gap, observer=OBSERVER), Changed)
    ]
    sentences: list[str] = []
    for gap in accepted:
        sentences.append(
            f"Accepted the loss of {gap.start} to {gap.end} of shard {shard_id} of {key}."
        )
        if not gap.skipped:
            sentences.append("The next run continues after this gap.")
    show_result(
        {"group": str(key), "shard": shard_id, "accepted": accepted},
        *(sentences or [f"Shard {shard_id} of {key} has no gap to accept."]),
        as_json=choice.as_json,
    )
