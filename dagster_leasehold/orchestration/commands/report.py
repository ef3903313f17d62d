"""`leasehold report`: writes an HTML page with a group's nodes, shards and recent history."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import counted
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.commands.target import GroupChoice
from dagster_leasehold.orchestration.group_history import (
    holders_before,
    holdings_over_time,
    moves,
    points,
    runs,
)
from dagster_leasehold.orchestration.group_view import GroupReader
from dagster_leasehold.orchestration.presentation import show_result
from dagster_leasehold.orchestration.progress_display import progress
from dagster_leasehold.orchestration.report_page import Report, page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
    from dagster_leasehold.lease_store.journal_rows import JournalEntry
    from dagster_leasehold.lease_store.ledger_rows import Batch
    from dagster_leasehold.lease_store.store import LeaseStore
    from dagster_leasehold.orchestration.group_view import GroupView

ENTRIES_MAX = 100_000
"""The most journal entries in a page, and about the most ledger rows; the newest are taken."""
GAPS_MAX = 10_000


def report(
    choice: GroupChoice,
    *,
    html: Annotated[
        Path,
        typer.Option(
            "--html", metavar="FILE", help="The file to write; an existing one is replaced."
        ),
    ] = Path("report.html"),
    verified: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Also verify journal and ledger.")
    ] = True,
) -> None:
    """Write an HTML report about a stream's nodes, shards, rates, gaps, moves and runs."""
    target, key = choice.opened()
    view = GroupReader(target.store, key, target.streams.usable(key.stream).source).read()
    content = page(report_of(target.store, key, view, utc_now(), verified=verified))
    replace_file(html, content)
    shards = counted(len(view.shards), "shard")
    facts = {"group": str(key), "file": str(html), "shards": len(view.shards)}
    show_result(facts, f"Wrote {html}: {shards} of {key}.", as_json=choice.as_json)


def report_of(
    store: LeaseStore, key: GroupKey, view: GroupView, now: datetime, *, verified: bool
) -> Report:
    """Return the content of a page.

    Args:
        verified: True to verify journal and ledger.
    """
    from itertools import islice

    from dagster_leasehold.lease_store.rules.verification import audit

    journal = store.journal(key, limit=ENTRIES_MAX, newest=True)
    batches, complete = _newest_batches(store, key)
    violations = None
    if verified:
        with progress("reading journal and ledger", "ledger rows") as show:
            violations = [str(each) for each in audit(store, key, progress=show).violations]
    notes: list[str] = []
    if len(journal) == ENTRIES_MAX:
        notes.append(f"Ownership, moves and runs begin at {journal[0].at:%Y-%m-%d %H:%M} UTC.")
    if not complete:
        notes.append("Rates are taken from the newest batches of each shard.")
    return Report(
        at=now,
        view=view,
        holdings=holdings_over_time(journal, now, first_holders=_first_holders(journal, view)),
        moves=moves(journal),
        runs=runs(journal, batches),
        points=points(batches),
        gaps=list(islice(store.gaps(key), GAPS_MAX)),
        violations=violations,
        notes=notes,
    )


def _first_holders(journal: Sequence[JournalEntry], view: GroupView) -> dict[ShardId, NodeName]:
    if len(journal) < ENTRIES_MAX:
        return {}
    holders = {row.shard: row.consumer_owner for row in view.shards if row.consumer_owner}
    return holders_before(journal, holders)


def _newest_batches(store: LeaseStore, key: GroupKey) -> tuple[list[Batch], bool]:
    """Return the newest batches of each shard, and True if no older ones exist."""
    heads = store.heads(key)
    share = max(ENTRIES_MAX // max(len(heads), 1), 1)
    begins = {shard: max(head.next_number - share, 0) for shard, head in heads.items()}
    return list(store.batches_since(key, begins)), not any(begins.values())
