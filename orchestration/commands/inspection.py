"""`leasehold status`, `plan`, `journal` and `verify`: what is, what would be, what was."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.upkeep import UpkeepReport
from dagster_leasehold.orchestration.commands.groups import described
from dagster_leasehold.orchestration.commands.options import GroupName, Home, Json, Stream
from dagster_leasehold.orchestration.commands.progress import progress
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.declared_nodes import mode_note, not_joined, refused_members
from dagster_leasehold.orchestration.presentation import say, show_json, show_table
from dagster_leasehold.shard_sources.lag import lags_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_leasehold.lease_store.group_rows import Node
    from dagster_leasehold.lease_store.journal_rows import JournalEntry
    from dagster_leasehold.lease_store.roles.outbox import WaitingEvents
    from dagster_leasehold.lease_store.shard_rows import ShardLease


def status(
    stream: Stream = None, group: GroupName = None, as_json: Json = False, home: Home = None
) -> None:
    """Show a group's nodes, and its shards with state, owner, checkpoint and lag."""
    target = Target.at(home)
    key = target.group(stream, group).key
    snapshot = target.store.snapshot(key)
    leases = sorted(snapshot.shards, key=lambda lease: rank_key(lease.shard))
    lags, trouble = lags_of(target.stream(key.stream).source, leases)
    shards = [_shard_row(lease, lags.get(lease.shard)) for lease in leases]
    nodes = [_node_row(node, snapshot.shards) for node in snapshot.nodes]
    declared = target.declared(stream)
    refusals = [
        *not_joined(snapshot, declared, target.settings),
        *refused_members(snapshot),
    ]
    note = mode_note(snapshot, declared)
    hooks = [_hook_row(each) for each in target.store.waiting_events(key, EventKind.HOOK)]
    upkeep = UpkeepReport.load(target.settings.upkeep_file(key.stream, key.group))
    if as_json:
        group_ = described(snapshot.group)
        show_json(
            {
                "group": group_,
                "nodes": nodes,
                "refusals": refusals,
                "note": note,
                "shards": shards,
                "on_commit": hooks,
                "upkeep": upkeep,
            }
        )
        return
    paused = ", paused" if snapshot.group.paused else ""
    show_table(
        f"Nodes of {key} (generation {snapshot.group.generation}{paused})",
        ("node", "member", "takes runs", "beats", "shards"),
        (tuple(node.values()) for node in nodes),
        numeric=("beats", "shards"),
    )
    for line in (*refusals, *([note] if note else ())):
        say(str(line))
    show_table(
        f"Shards of {key}",
        ("shard", "state", "owner", "next", "checkpoint", "lag", "epoch", "open in run", "parents"),
        (
            (
                *list(shard.values())[:7],
                str(shard["run"])[:8],
                ", ".join(lease.parents),
            )
            for shard, lease in zip(shards, leases, strict=True)
        ),
        numeric=("checkpoint", "lag", "epoch"),
    )
    if hooks:
        show_table(
            f"Batches that on_commit of {key} was not told of",
            ("shard", "waiting", "next", "failed attempts", "last error"),
            (tuple(hook.values()) for hook in hooks),
            numeric=("waiting", "failed attempts"),
        )
    if upkeep is not None:
        _show_upkeep(upkeep)
    if trouble:
        say(f"The lag is not known: {trouble}")


def _shard_row(lease: ShardLease, lag: int | None) -> dict[str, Any]:
    return {
        "shard": lease.shard,
        "state": lease.state,
        "consumer_owner": lease.consumer_owner,
        "next_owner": lease.lease_owner if lease.lease_owner != lease.consumer_owner else None,
        "check_point": lease.check_point,
        "lag": lag,
        "epoch": lease.consumer_epoch,
        "run": lease.consumer_run,
        "parents": lease.parents,
    }


def _node_row(node: Node, leases: Sequence[ShardLease]) -> dict[str, Any]:
    return {
        "node": node.name,
        "member": node.member,
        "accepts_runs": node.accepts_runs,
        "lease_id": node.lease_id,
        "shards": sum(lease.consumer_owner == node.name for lease in leases),
    }


def _hook_row(waiting: WaitingEvents) -> dict[str, Any]:
    return {
        "shard": waiting.shard,
        "waiting": waiting.count,
        "next_batch": waiting.oldest.batch_id,
        "failed_attempts": waiting.oldest.attempts,
        "error": waiting.oldest.error,
    }


def _show_upkeep(upkeep: UpkeepReport) -> None:
    """What staying in the group costs the deployment of this home."""
    show_table(
        f"Upkeep in the lease term of {upkeep.term_s:g} s before {upkeep.at}: {upkeep.ticks} ticks "
        f"for {upkeep.nodes} nodes",
        ("statement", "number", "writes"),
        (
            (kind, count, "yes" if kind in upkeep.writes else "no")
            for kind, count in upkeep.statements.items()
        ),
        numeric=("number",),
    )


def plan(
    stream: Stream = None,
    group: GroupName = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each move, and why no plan is smaller.")
    ] = False,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show what the next planning round would change; nothing is carried out.

    Every member counts as live: who is dead, only a process that watches the nodes can judge.
    """
    from dagster_leasehold.lease_store.rules.planning import plan as plan_of
    from dagster_leasehold.lease_store.shard_weights import planning_snapshot

    target = Target.at(home)
    key, declared = target.group(stream, group).key, target.declared(stream)
    snapshot = planning_snapshot(target.store, key)
    live = [node.name for node in snapshot.nodes if node.member]
    planned = plan_of(snapshot, live=live)
    outside = not_joined(snapshot, declared, target.settings)
    planned = replace(planned, refusals=(*outside, *planned.refusals))
    note = mode_note(snapshot, declared)
    reasons = [*planned.explain(), *([note] if note else ())]
    if as_json:
        show_json({"plan": planned, "explanation": reasons})
        return
    loads = dict(planned.loads)
    # By load, no count proves that fewer moves would do as well.
    bound = "at least needed" if loads else "fewest possible"
    say(f"Plan for {key}: {planned.moves} moves ({bound}: {planned.moves_minimum}).")
    if loads:
        show_table(
            "Shards and load per node after it",
            ("node", "shards", "records/s"),
            ((node, count, loads[node]) for node, count in planned.counts),
            numeric=("shards", "records/s"),
        )
    else:
        show_table(
            "Shards per node after it",
            ("node", "shards"),
            planned.counts,
            numeric=("shards",),
        )
    if explain:
        for line in reasons:
            say(line)


def journal(
    *,
    stream: Stream = None,
    group: GroupName = None,
    shard: Annotated[str | None, typer.Option("--shard", help="One shard only.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest N entries.")] = 50,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Show every change of owner, tenure and checkpoint, with its reason."""
    target = Target.at(home)
    key = target.group(stream, group).key
    wanted = target.shard(key, shard).shard if shard is not None else None
    entries = target.store.journal(key, shard=wanted, limit=limit, newest=True)
    if as_json:
        show_json(entries)
        return
    show_table(
        f"Journal of {key}",
        ("#", "at", "what", "shard", "from -> to", "epoch", "reason"),
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
        numeric=("#", "epoch"),
    )


def _movement(entry: JournalEntry) -> str:
    before = [part for part in (entry.from_state, entry.from_owner) if part is not None]
    after = [part for part in (entry.to_state, entry.to_owner) if part is not None]
    if not before and not after:
        return ""
    return f"{' '.join(before) or '-'} -> {' '.join(after) or '-'}"


def verify(
    stream: Stream = None, group: GroupName = None, as_json: Json = False, home: Home = None
) -> None:
    """Prove from journal and ledger that every record was committed once, by its holder alone."""
    from dagster_leasehold.lease_store.rules.verification import audit

    target = Target.at(home)
    key = target.group(stream, group).key
    with progress("reading journal and ledger", "batches") as told:
        found = audit(target.store, key, progress=told)
    if as_json:
        show_json({"group": str(key), "violations": found.violations})
    else:
        for violation in found.violations:
            say(f"VIOLATION: {violation}")
        say(
            f"{key}: {found.tenures:,} tenures and {found.batches:,} committed batches, "
            f"{len(found.violations) or 'no'} violations."
        )
    if found.violations:
        raise typer.Exit(1)
