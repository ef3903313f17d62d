"""`leasehold group`: creates, lists, shows, changes and deletes consumer groups."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.group_rows import AssignmentMode, GapPolicy, Group, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.commands.options import OBSERVER, stream_names
from dagster_leasehold.orchestration.commands.target import (
    DeploymentChoice,
    GroupChoice,
    NamedGroup,
)
from dagster_leasehold.orchestration.presentation import show_json, show_result, show_table

app = typer.Typer(
    help="Create, list, change, pause and delete consumer groups.", no_args_is_help=True
)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options for the settings of a group; None means that the user gave no value."""

    ordered: Annotated[
        bool | None,
        typer.Option(
            "--ordered/--unordered",
            help="Read the children of a split or merge after their parents, or at once.",
        ),
    ] = None
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", help="Lease timeout of its nodes, in seconds.")
    ] = None
    assignment: Annotated[
        AssignmentMode | None, typer.Option("--assignment", help="How the nodes share the shards.")
    ] = None
    initial_position: Annotated[
        str | None,
        typer.Option(
            "--initial-position",
            help="Where a shard without a checkpoint starts: begin, end or an ISO 8601 time.",
        ),
    ] = None
    node_cap: Annotated[
        int | None,
        typer.Option(
            "--node-cap", help="The most shards that a node can hold; 0 removes the limit."
        ),
    ] = None
    gap_policy: Annotated[
        GapPolicy | None,
        typer.Option(
            "--gap-policy",
            help="If unread records were removed: hold the shard, or continue at the begin or end "
            "of the remaining records.",
        ),
    ] = None
    weighted: Annotated[
        bool | None,
        typer.Option(
            "--weighted/--by-count",
            help="Balance the records per second in the ledger, or the number of shards.",
        ),
    ] = None

    def applied_to(self, group: Group) -> Group:
        """Check the given settings, and return the group with them."""
        values: dict[str, Any] = dataclasses.asdict(self)
        changes = {name: value for name, value in values.items() if value is not None}
        if self.timeout_s is not None:
            Timing(timeout_s=self.timeout_s, beat_s=self.timeout_s / 3)
        if self.initial_position is not None:
            _check_position(self.initial_position)
        if self.node_cap is not None:
            if self.node_cap < 0:
                raise InvalidSetting(
                    f"--node-cap is {self.node_cap}: use a positive number, or 0 for no limit."
                )
            changes["node_cap"] = self.node_cap or None
        return dataclasses.replace(group, **changes)


def _check_position(text: str) -> None:
    from dagster_leasehold.shard_sources.positions import parse_position

    if parse_position(text) is None:
        raise InvalidSetting(
            f"--initial-position {shown(text)} is not a position: use begin, end or an ISO 8601 "
            "time such as 2026-01-31T12:00:00Z."
        )


@app.command()
def create(settings: GroupSettings, choice: NamedGroup) -> None:
    """Create a consumer group of a stream."""
    target = choice.target
    declared = target.declared(choice.stream)
    is_declared = choice.group in (None, declared.group)
    new_group = settings.applied_to(
        Group(
            key=declared.key
            if choice.group is None
            else GroupKey.parse(choice.group, declared.name),
            ordered=declared.ordered,
            assignment=declared.assignment if is_declared else AssignmentMode.BALANCED,
            timeout_s=target.settings.lease_timeout_s,
        )
    )
    target.new_store.create_group(new_group)
    show_result(
        group_fields(new_group), f"Created consumer group {new_group.key}.", as_json=choice.as_json
    )


@app.command("list")
def list_(
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="STREAM",
            help="Only the groups of this stream (default: of all streams).",
            autocompletion=stream_names,
        ),
    ] = None,
    *,
    choice: DeploymentChoice,
) -> None:
    """List the consumer groups of one stream, or of all streams."""
    target = choice.target
    key = target.declared(stream).key if stream is not None else None
    groups = target.store.groups(key.stream if key is not None else None)
    if choice.as_json:
        show_json([group_fields(group) for group in groups])
        return
    show_table(
        "Consumer groups",
        "stream, group, order, assignment, >timeout s, paused, >generation",
        (
            (
                group.key.stream,
                group.key.group,
                "parents first" if group.ordered else "any",
                group.assignment.value,
                group.timeout_s,
                group.paused,
                group.generation,
            )
            for group in groups
        ),
    )


def group_fields(group: Group) -> dict[str, object]:
    """Return a group as a flat dictionary, with its key as `stream` and `group`."""
    values: dict[str, object] = {"stream": group.key.stream, "group": group.key.group}
    for field in dataclasses.fields(group):
        if field.name != "key":
            values[field.name] = getattr(group, field.name)
    return values


@app.command()
def show(choice: GroupChoice) -> None:
    """Show one consumer group."""
    values = group_fields(choice.target.group(choice.stream, choice.group))
    if choice.as_json:
        show_json(values)
        return
    show_table("Consumer group", "setting, value", values.items())


@app.command()
def update(settings: GroupSettings, choice: NamedGroup) -> None:
    """Change a consumer group; a change of its order applies at once."""
    target = choice.target
    before = target.group(choice.stream, choice.group)
    after = settings.applied_to(before)
    changed = after != before
    sentences = [f"Consumer group {before.key} already has these settings."]
    if changed:
        target.store.update_group(after, observer=OBSERVER)
        sentences = [f"Updated consumer group {before.key}."]
    declared = target.declared(choice.stream)
    if changed and declared.key == before.key and declared.assignment != after.assignment:
        sentences.append(
            f"It now assigns shards by {after.assignment}, but the stream's declaration says "
            f"{declared.assignment}, and nodes take their settings from it."
        )
    stored = group_fields(target.group(choice.stream, choice.group))
    show_result({"changed": changed} | stored, *sentences, as_json=choice.as_json)


@app.command("accept-log")
def accept_log(choice: NamedGroup) -> None:
    """Continue in a log that was deleted and recreated.

    Use it only if the new log has the same records at the same cursors.
    """
    from dagster_leasehold.shard_sources.source import identity_of_log

    target, key = choice.opened()
    identity = identity_of_log(target.streams.usable(key.stream).source)
    if identity is None:
        raise InvalidSetting(
            f"The source of stream {key.stream} has no identity of its log, so there is nothing to "
            "accept."
        )
    target.store.log_of_group(key, identity, instead=True)
    show_result(
        {"group": str(key), "log": identity},
        f"The cursors of {key} now belong to the current log.",
        as_json=choice.as_json,
    )


@app.command()
def delete(
    choice: NamedGroup,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if some of its nodes are alive.")
    ] = False,
) -> None:
    """Delete a consumer group with its checkpoints, ledger and journal."""
    target, key = choice.opened()
    target.store.delete_group(key, force=force)
    show_result(
        {"stream": key.stream, "group": key.group, "deleted": True},
        f"Deleted consumer group {key}.",
        as_json=choice.as_json,
    )
