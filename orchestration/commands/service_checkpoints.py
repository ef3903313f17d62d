"""`leasehold checkpoint import` and `export`: they add themselves to `leasehold checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.orchestration.commands.checkpoints import app, forced
from dagster_leasehold.orchestration.commands.options import OBSERVER, GroupName, Home, Json, Stream
from dagster_leasehold.orchestration.commands.target import Target, listed
from dagster_leasehold.orchestration.presentation import tell

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
    from dagster_leasehold.lease_store.shard_rows import ShardLease
    from dagster_leasehold.shard_sources.loghub.consumer_groups import ServiceConsumerGroup
    from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor
    from dagster_leasehold.shard_sources.loghub.source import LogHub

ServiceGroup = Annotated[
    str | None,
    typer.Option(
        "--consumer-group",
        metavar="NAME",
        help="The consumer group in the service (default: of the same name as here).",
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live", help="Proceed even if one of the groups holds shards: records may come twice."
    ),
]


@app.command("import")
def import_(
    consumer_group: ServiceGroup = None,
    *,
    live: Live = False,
    stream: Stream = None,
    group: GroupName = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Import the checkpoints of a consumer group of the log service (LogHub).

    Each shard continues at the record that the service's consumers would have read next.
    """
    target = Target.at(home)
    key, source, service = _both(target, stream, group, consumer_group)
    name = consumer_group or key.group
    stored = service.checkpoints()
    if not live:
        _refuse_live(key, name, {shard: row.consumer for shard, row in stored.items()}, target)
    target.store.sync_shards(key, source.list_shards(), observer=OBSERVER)
    leases = {lease.shard: lease for lease in target.store.snapshot(key).shards}
    # Parents first: what is forced on a parent may concern its children.
    wanted = sorted(stored, key=rank_key)
    cursors = {shard: row.cursor for shard, row in stored.items() if row.cursor is not None}
    for shard, cursor in cursors.items():
        _check(source, shard, cursor)
    moved = [
        shard
        for shard in wanted
        if shard in cursors and shard in leases and _take(target, key, leases[shard], cursors)
    ]
    tell(
        {"group": str(key), "consumer_group": name, "imported": moved},
        f"Imported {len(moved)} checkpoints of {shown(name)} into {key}.",
        *_left("Unchanged shards", [s for s in cursors if s in leases and s not in moved]),
        *_left(
            "Shards without a checkpoint in the service", [s for s in wanted if s not in cursors]
        ),
        *_left(
            "Shards that are no longer in the logstore", [s for s in cursors if s not in leases]
        ),
        as_json=as_json,
    )


@app.command("export")
def export(
    consumer_group: ServiceGroup = None,
    *,
    live: Live = False,
    repeat: Annotated[
        bool,
        typer.Option(
            "--repeat",
            help="Where a checkpoint lies within a LogGroup, go back to its start: its first "
            "records are read again.",
        ),
    ] = False,
    stream: Stream = None,
    group: GroupName = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Export the checkpoints to a consumer group of the log service (LogHub), made if need be.

    There, each shard continues at the record that would have been read here next.
    """
    from dagster_leasehold.shard_sources.loghub.cursors import GroupCursor

    target = Target.at(home)
    key, _, service = _both(target, stream, group, consumer_group)
    name = consumer_group or key.group
    exists = service.exists
    if not live:
        held = service.checkpoints() if exists else {}
        _refuse_live(key, name, {shard: row.consumer for shard, row in held.items()}, target)
    leases = target.leases(key)
    cursors = {
        lease.shard: GroupCursor.parse(lease.shard, lease.check_point)
        for lease in leases
        if lease.check_point is not None
    }
    within = [shard for shard, cursor in cursors.items() if cursor.index]
    if within and not repeat:
        raise errors.CheckpointRefused(
            f"The checkpoints of shards {listed(within)} of {key} lie within a LogGroup, where the "
            "service has no cursor: let more of them be read, or add --repeat to have the first "
            "records of these LogGroups read again."
        )
    if not exists:
        settings = target.group(key.stream, key.group)
        service.create(settings.timeout_s, ordered=settings.ordered)
    for shard, cursor in cursors.items():
        service.store(shard, GroupCursor(cursor.group))
    tell(
        {"group": str(key), "consumer_group": name, "exported": list(cursors)},
        f"Exported {len(cursors)} checkpoints of {key} to {shown(name)}.",
        *_left("Shards that begin their LogGroup again", within),
        *_left(
            "Shards without a checkpoint here",
            [row.shard for row in leases if row.check_point is None],
        ),
        as_json=as_json,
    )


def _both(
    target: Target, stream: str | None, group: str | None, consumer_group: str | None
) -> tuple[GroupKey, LogHub, ServiceConsumerGroup]:
    """Return the group here, its logstore, and the group there.

    Raises:
        InvalidSetting: the stream is not a logstore.
    """
    from dagster_leasehold.shard_sources.loghub.consumer_groups import ServiceConsumerGroup
    from dagster_leasehold.shard_sources.loghub.source import LogHub

    declared = target.declared(stream)
    key = target.group(stream, group).key
    source = target.stream(stream).source
    if not isinstance(source, LogHub):
        raise errors.InvalidSetting(
            f"Stream {shown(declared.name)} reads from the source {shown(declared.source)}: only "
            "logstores of loghub have consumer groups of their own."
        )
    return key, source, ServiceConsumerGroup(source, consumer_group or key.group)


def _refuse_live(key: GroupKey, name: str, consumers: dict[ShardId, str], target: Target) -> None:
    """Refuse while either side may be at work.

    Raises:
        GroupInUse: somebody holds a shard there, or has one open here.
    """
    held = sorted((shard for shard, consumer in consumers.items() if consumer), key=rank_key)
    if held:
        raise errors.GroupInUse(
            f"Consumers of {shown(name)} hold shards {listed(held)} in the log service: stop "
            "them first, or add --live to read twice what they read from now on."
        )
    opened = [lease.shard for lease in target.store.snapshot(key).shards if lease.consumer_run]
    if opened:
        raise errors.GroupInUse(
            f"Runs of {key} have shards {listed(sorted(opened, key=rank_key))} open: drain it "
            f"first with `leasehold group drain {key.group} --stream {key.stream}`, or add --live."
        )


def _check(source: LogHub, shard: ShardId, cursor: GroupCursor) -> None:
    """Refuse a cursor that is not of its shard; one that has expired becomes a gap later."""
    from dagster_leasehold.lease_store import errors
    from dagster_leasehold.shard_sources.source import Limits

    try:
        source.plan(shard, str(cursor), Limits(records_max=1))
    except (errors.CursorExpired, errors.UnknownShard):
        return


def _take(
    target: Target, key: GroupKey, lease: ShardLease, cursors: dict[ShardId, GroupCursor]
) -> bool:
    text = str(cursors[lease.shard])
    if lease.check_point == text:
        return False
    forced(target, key, lease.shard, text, reason="imported", reopen=Reopening.REFUSE)
    return True


def _left(title: str, shards: Iterable[ShardId]) -> list[str]:
    names = sorted(shards, key=rank_key)
    return [f"{title}: {listed(names)}."] if names else []
