"""`leasehold plan`, `journal` and `verify`: a group's next moves and its history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import counted
from dagster_leasehold.orchestration.commands.options import AnyShard
from dagster_leasehold.orchestration.commands.status import mode_note, refused_nodes
from dagster_leasehold.orchestration.commands.target import GroupChoice, Target
from dagster_leasehold.orchestration.presentation import say, show_json, show_table
from dagster_leasehold.orchestration.progress_display import progress

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.present_files import FilePresence
    from dagster_leasehold.lease_store.identifiers import GroupKey
    from dagster_leasehold.lease_store.journal_rows import JournalEntry
    from dagster_leasehold.lease_store.rules.assignment_plan import Plan


def plan(
    choice: GroupChoice,
    *,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Also show each move, its reason, and why fewer moves are not enough."
        ),
    ] = False,
) -> None:
    """Show the moves of the next plan, without carrying them out.

    The plan assumes that all members are alive.
    """
    from dagster_leasehold.lease_store.rebalancing import planning_snapshot
    from dagster_leasehold.lease_store.rules.planning import plan as plan_of

    target, key = choice.opened()
    declared = target.declared(choice.stream)
    snapshot = planning_snapshot(target.store, key)
    live = [node.name for node in snapshot.nodes if node.member]
    next_plan = plan_of(snapshot, live=live)
    outsiders = refused_nodes(snapshot, declared, target.settings)
    next_plan = replace(next_plan, refusals=(*outsiders, *next_plan.refusals))
    note = mode_note(snapshot, declared)
    reasons = [*next_plan.explain(), *([note] if note else ())]
    if choice.as_json:
        show_json({"plan": next_plan, "explanation": reasons})
        return
    loads = dict(next_plan.loads)
    # If load is balanced, the minimum is only a lower bound.
    bound = "lower bound" if loads else "fewest possible"
    moves = counted(next_plan.moves, "move")
    say(f"Plan for {key}: {moves} ({bound}: {next_plan.moves_minimum}).")
    say(f"{next_plan.summary}.")
    if loads:
        show_table(
            "Shards and load per node after the moves",
            "node, >shards, >records/s",
            ((node, count, loads[node]) for node, count in next_plan.counts),
        )
    else:
        show_table("Shards per node after the moves", "node, >shards", next_plan.counts)
    if explain:
        _explain(next_plan, note)


def _explain(next_plan: Plan, note: str | None) -> None:
    if next_plan.actions:
        moves = (action.cells for action in next_plan.actions)
        show_table("Moves", "shard, move, from, to, ~reason", moves)
    later = next_plan.moves - len(next_plan.actions)
    if later > 0:
        say(f"{counted(later, 'further move')} can start only after evictions or these moves.")
    for line in (*next_plan.refusals, *next_plan.unassigned, *([note] if note else ())):
        say(str(line))
    if next_plan.proof:
        say("Why fewer moves are not enough:")
    for line in next_plan.proof:
        say(f"- {line}")


def journal(
    choice: GroupChoice,
    shard: AnyShard = None,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show the newest N entries.")] = 50,
) -> None:
    """Show the changes of owners, tenures and checkpoints, each with its reason."""
    target, key = choice.opened()
    shard_id = target.named_shard(key, shard)
    entries = target.store.journal(key, shard=shard_id, limit=limit, newest=True)
    if choice.as_json:
        show_json(entries)
        return
    show_table(
        f"Journal of {key}",
        ">#, at, what, shard, from -> to, >epoch, reason",
        (
            (
                entry.sequence,
                entry.at,
                f"edge {entry.edge}" if entry.edge is not None else entry.kind,
                entry.shard,
                _movement(entry),
                entry.epoch or None,
                entry.reason,
            )
            for entry in entries
        ),
    )


def _movement(entry: JournalEntry) -> str:
    before = [part for part in (entry.from_state, entry.from_owner) if part is not None]
    after = [part for part in (entry.to_state, entry.to_owner) if part is not None]
    if not before and not after:
        return ""
    return f"{' '.join(before) or '-'} -> {' '.join(after) or '-'}"


def verify(
    choice: GroupChoice,
    *,
    files: Annotated[
        bool,
        typer.Option(
            "--files/--no-files", help="Check that every committed file is in the output folder."
        ),
    ] = True,
) -> None:
    """Prove that every record was committed once, by its holder, and is in the table.

    Reads journal and ledger, compares the table with the ledger, and checks that every committed
    file exists. Exits with 1 if it finds a violation.
    """
    from dagster_leasehold.assets.output.expired_output import expired_output, where_output_begins
    from dagster_leasehold.assets.output.table.group_table import comparison_of
    from dagster_leasehold.lease_store.rules.verification import audit

    target, key = choice.opened()
    with progress("reading journal and ledger", "ledger rows") as report:
        proof = audit(target.store, key, progress=report)
    expired = expired_output(target.store, key)
    place = target.output(key)
    comparison = comparison_of(target.store, key, target.settings.catalog_settings, place)
    table = comparison.compare() if comparison else None
    presence = _presence(target, key) if files else None
    if choice.as_json:
        violations = {"violations": proof.violations, "expired": expired}
        show_json({"group": str(key), **violations, "table": table, "files": presence})
    else:
        for line in where_output_begins(key, expired):
            say(line)
        for violation in proof.violations:
            say(f"VIOLATION: {violation}")
        say(
            f"{key}: {proof.tenures:,} tenures and {proof.batches:,} committed batches, "
            f"{len(proof.violations) or 'no'} violations."
        )
        if table:
            for difference in table.differences:
                say(f"DIFFERENCE: {difference}")
            for note in table.notes:
                say(note)
            number = len(table.differences) or "no"
            say(f"{key}: {table.files:,} files in the table, {number} differences.")
        _say_presence(key, presence)
    if proof.violations or (table and table.differences) or (presence and presence.missing):
        raise typer.Exit(1)


def _presence(target: Target, key: GroupKey) -> FilePresence:
    from dagster_leasehold.assets.output.present_files import check_files

    folder = target.output(key)
    with progress("checking committed files", "ledger rows") as report:
        return check_files(target.store, key, folder, report)


def _say_presence(key: GroupKey, presence: FilePresence | None) -> None:
    if presence is None:
        say(f"{key}: the committed files were not checked (--no-files).")
        return
    for sentence in presence.sentences:
        say(f"MISSING: {sentence}")
    number = f"{presence.missing:,}" if presence.missing else "none"
    say(f"{key}: {presence.files:,} committed files checked, {number} missing.")
