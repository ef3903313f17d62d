"""`leasehold status`: a group's nodes and shards, and conflicts with the declaration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_leasehold.assets.node_settings import node_row
from dagster_leasehold.lease_store.errors import AssignmentConflict, counted, listed
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.publication_rows import HeldOutput, PublicationLag
from dagster_leasehold.lease_store.rules.assignment_plan import Refusal, check_member, rank_key
from dagster_leasehold.lease_store.rules.planning import plan, stranded
from dagster_leasehold.lease_store.rules.progress import duration
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.commands.groups import group_fields
from dagster_leasehold.orchestration.commands.target import GroupChoice
from dagster_leasehold.orchestration.group_view import GroupReader, NodeRow, ShardRow
from dagster_leasehold.orchestration.presentation import plain, say, show_json, show_table
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.leftovers import usages
from dagster_leasehold.sensors.statement_counts import UpkeepReport

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.identifiers import GroupKey
    from dagster_leasehold.lease_store.journal_rows import WaitingEvents
    from dagster_leasehold.lease_store.store import LeaseStore


ERROR_SHOWN = 40
"""The most characters of a shard's last error in its row."""


def status(choice: GroupChoice) -> None:
    """Show a group's nodes, and its shards with state, owner, checkpoint and lag.

    With --json, `processes` has the numbers and memory of the home's processes on this host.
    """
    target, key = choice.opened()
    declared = target.streams.usable(key.stream)
    view = GroupReader(target.store, key, declared.source).read()
    snapshot, shards, nodes = view.snapshot, list(map(_shard_facts, view.shards)), view.nodes
    refusals = [*refused_nodes(snapshot, declared, target.settings), *refused_members(snapshot)]
    note = mode_note(snapshot, declared)
    hooks = [_hook_row(each) for each in target.store.waiting_events(key, EventKind.HOOK)]
    lag = PublicationLag.of(target.store.publication_lag(key))
    held = target.store.held_output(key)
    published = publication_state(target.store, key, lag, held)
    upkeep = UpkeepReport.load(target.settings.upkeep_file(key.stream, key.group))
    if choice.as_json:
        group_ = group_fields(snapshot.group)
        show_json(
            {
                "group": group_,
                "alive": view.death() is None,
                "nodes": nodes,
                "refusals": refusals,
                "note": note,
                "shards": shards,
                "publication": published,
                "on_commit": hooks,
                "upkeep": upkeep,
                "processes": usages(target.settings.home),
            }
        )
        return
    paused = ", paused" if snapshot.group.paused else ""
    show_table(
        f"Nodes of {key} (generation {snapshot.group.generation}{paused})",
        "node, state, >last heartbeat, takes runs, >heartbeats, >shards",
        map(_node_cells, nodes),
    )
    death = view.death()
    sentences = (*([death] if death else ()), *refusals, *([note] if note else ()))
    for line in (*sentences, *mixed_releases(snapshot), *stranded(snapshot)):
        say(str(line))
    columns = "shard, state, owner, next, >checkpoint, >lag, >epoch, open in run, parents"
    rows: list[tuple[object, ...]] = [_shard_cells(row) for row in view.shards]
    if any(row.last_error for row in view.shards):
        columns += ", ~last error"
        rows = [(*_shard_cells(row), _last_error(row)) for row in view.shards]
    show_table(f"Shards of {key}", columns, rows)
    for line in view.obstacles():
        say(line)
    if published is not None:
        say(" ".join((publication_sentence(published, lag), *map(str, held))))
    if hooks:
        show_table(
            f"Batches of {key} that wait for on_commit",
            "shard, >waiting, next, >failed attempts, last error",
            (tuple(hook.values()) for hook in hooks),
        )
    if upkeep is not None:
        _show_upkeep(upkeep)
    if view.lag_trouble:
        say(view.lag_trouble)


def _shard_facts(row: ShardRow) -> dict[str, Any]:
    """Return a shard for JSON, without rates, since they need several readings."""
    facts: dict[str, Any] = plain(row)
    for name in ("lag_seconds", "last_error_s"):
        facts[name] = None if facts[name] is None else round(facts[name], 3)
    del facts["rate"], facts["caught_up_s"]
    return facts


def _shard_cells(row: ShardRow) -> tuple[object, ...]:
    """Return a shard's cells; the lag is a number, an age, or both."""
    age = row.lag_seconds
    parts = [None if row.lag is None else f"{row.lag:,}", f"{age:,.0f} s" if age else None]
    lag = ", ".join(part for part in parts if part is not None)
    names = (row.shard, row.state, row.consumer_owner, row.next_owner, row.check_point)
    return (*names, lag, row.epoch, row.run[:8], ", ".join(row.parents))


def _last_error(row: ShardRow) -> str:
    if not row.last_error:
        return ""
    age = "" if row.last_error_s is None else f"{duration(row.last_error_s)} ago: "
    text = row.last_error
    return age + (text if len(text) <= ERROR_SHOWN else f"{text[: ERROR_SHOWN - 1]}…")


def _node_cells(row: NodeRow) -> tuple[object, ...]:
    ago = None if row.last_beat_s is None else f"{duration(row.last_beat_s)} ago"
    return (row.node, row.liveness, ago, row.accepts_runs, row.lease_id, row.shards)


def mixed_releases(snapshot: Snapshot) -> list[str]:
    """Return a sentence with the members' releases if they differ."""
    releases: dict[str, list[str]] = {}
    for node in snapshot.nodes:
        if node.member:
            releases.setdefault(node.release_version or "an older release", []).append(node.name)
    if len(releases) < 2:
        return []
    each = "; ".join(f"{release} on {listed(names)}" for release, names in releases.items())
    return [f"The nodes run several releases: {each}."]


def _hook_row(waiting: WaitingEvents) -> dict[str, Any]:
    return {
        "shard": waiting.shard,
        "waiting": waiting.count,
        "next_batch": waiting.oldest.batch_id,
        "failed_attempts": waiting.oldest.attempts,
        "error": waiting.oldest.error,
    }


def publication_state(
    store: LeaseStore, key: GroupKey, lag: PublicationLag, held: Sequence[HeldOutput] = ()
) -> dict[str, Any] | None:
    """Return the published and the unpublished output of a group; None without a table."""
    publication = store.publication(key)
    if publication is None or publication.table is None:
        return None
    committed = sum(total.records for total in store.totals(key))
    unknown = lag.more or any(each.lag.more for each in held)
    held_records = sum(each.lag.records for each in held)
    return {
        "table": str(publication.table),
        "publisher": publication.node,
        "publications": publication.number,
        "snapshot": publication.snapshot,
        "committed_records": committed,
        "published_records": None if unknown else committed - lag.records - held_records,
        "waiting_batches": lag.batches,
        "waiting_records": lag.records,
        "waiting_since": lag.since,
        "waiting_seconds": round(lag.seconds(utc_now()), 3),
        "more_waiting": lag.more,
        "changes_waiting": publication.changes_pending,
        "held": [held_fields(each) for each in held],
    }


def held_fields(held: HeldOutput) -> dict[str, Any]:
    """Return the held output of a shard for JSON."""
    hold = held.hold
    return {
        "shard": held.shard,
        "batches": held.lag.batches,
        "records": held.lag.records,
        "failed_batch": hold.batch,
        "check": hold.check,
        "reason": hold.reason,
        "since": hold.at,
    }


def publication_sentence(state: dict[str, Any], lag: PublicationLag) -> str:
    """Return the sentence about a group's table."""
    waiting = "it has all committed output"
    if state["held"]:
        waiting += " that is not held"
    if state["waiting_batches"]:
        waiting = f"of {counted(state['committed_records'], 'record')}, {lag}"
    elif state["changes_waiting"]:
        waiting = "it still has output that was rewritten or withdrawn, or has expired"
    publications = counted(state["publications"], "publication")
    return f"Table {state['table']}: {publications}; {waiting}."


def _show_upkeep(upkeep: UpkeepReport) -> None:
    show_table(
        f"Statements for {upkeep.nodes} nodes in {upkeep.ticks} ticks, in the lease term of "
        f"{upkeep.term_s:g} s before {upkeep.at}",
        "statement, >number, writes",
        (
            (kind, count, "yes" if kind in upkeep.writes else "no")
            for kind, count in upkeep.statements.items()
        ),
    )


def refused_nodes(snapshot: Snapshot, declared: ShardStream, settings: Settings) -> list[Refusal]:
    """Return the refusals of declared nodes that cannot join the group, by name.

    Their settings are compared with the members' rows in the store, since members can belong to
    another deployment.
    """
    if declared.key != snapshot.group.key:
        return []
    nodes = {NodeName(name): each for name, each in declared.nodes.items()}
    members = {node.name: node for node in snapshot.nodes if node.member}
    names = nodes.keys() | set(settings.expected_nodes or ())
    refusals: list[Refusal] = []
    for name in sorted(names - members.keys(), key=rank_key):
        try:
            check_member(snapshot.group, members.values(), node_row(name, nodes.get(name)))
        except AssignmentConflict as error:
            refusals.append(Refusal(name, error))
    return refusals


def refused_members(snapshot: Snapshot) -> tuple[Refusal, ...]:
    """Return the refusals of members with conflicting settings."""
    live = [node.name for node in snapshot.nodes if node.member]
    balanced = snapshot.group.assignment is AssignmentMode.BALANCED
    return () if balanced else plan(snapshot, live=live).refusals


def mode_note(snapshot: Snapshot, declared: ShardStream) -> str | None:
    """Return a sentence if the stored group's assignment mode differs from the declaration's."""
    group = snapshot.group
    if declared.key != group.key or declared.assignment is group.assignment:
        return None
    return (
        f"Group {group.key} assigns shards by {group.assignment}, but the stream's declaration "
        f"says {declared.assignment}, and nodes take their settings from it. Change the "
        f"declaration, or run `leasehold group update {group.key.stream} --assignment "
        f"{declared.assignment}`."
    )
