"""`leasehold checkpoint import` and `export`: checkpoints of other consumers of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import counted, listed, shown
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.orchestration.commands.checkpoints import app, border_at, force_checkpoint
from dagster_leasehold.orchestration.commands.options import OBSERVER
from dagster_leasehold.orchestration.commands.other_consumers import Kind, other_consumers
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target
from dagster_leasehold.orchestration.presentation import show_result
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress, TakesCheckpoints
from dagster_leasehold.shard_sources.source import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
    from dagster_leasehold.lease_store.shard_rows import ShardLease
    from dagster_leasehold.shard_sources.source import ShardSource

ImportedGroup = Annotated[
    str | None,
    typer.Option(
        "--consumer-group",
        metavar="NAME",
        help="The Kafka or LogHub consumer group or the KCL application to read (default: the name "
        "of the group here).",
    ),
]
ExportedGroup = Annotated[
    str | None,
    typer.Option(
        "--consumer-group",
        metavar="NAME",
        help="The Kafka or LogHub consumer group to write (default: the name of the group here).",
    ),
]
From = Annotated[
    Kind | None,
    typer.Option(
        "--from",
        help="The kind of consumers: a Kafka or LogHub group, a KCL application, or a Spark query "
        "that reads Kafka (default: the group or application of the stream's source).",
    ),
]
Location = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-location",
        metavar="PLACE",
        help="The checkpointLocation of the Spark query: a folder or a URI.",
    ),
]
Stopped = Annotated[
    bool,
    typer.Option(
        "--stopped",
        help="Confirm that the other consumers are stopped, which Spark and LogHub do not show.",
    ),
]
Failover = Annotated[
    float,
    typer.Option(
        "--failover",
        metavar="SECONDS",
        min=0.1,
        help="KCL's failoverTimeMillis, in seconds: a lease not renewed for this time has expired.",
    ),
]
Live = Annotated[
    bool,
    typer.Option(
        "--live", help="Proceed even if consumers of one side are running; records can be repeated."
    ),
]


@dataclass(frozen=True)
class ImportPlan:
    """The shards of an import.

    Attributes:
        changes: the shards whose checkpoint will change, parents first.
        unchanged: the shards with the same checkpoint here.
        expired: the shards in `changes` whose next record was removed.
        removed: the shards that are no longer in the log.
    """

    changes: list[ShardId]
    unchanged: list[ShardId]
    expired: list[ShardId]
    removed: list[ShardId]


@app.command("import")
def import_(
    choice: NamedGroup,
    *,
    kind: From = None,
    consumer_group: ImportedGroup = None,
    location: Location = None,
    stopped: Stopped = False,
    failover_s: Failover = 10.0,
    live: Live = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Withdraw the output that is committed here after imported checkpoints."
        ),
    ] = False,
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Import expired checkpoints; each becomes a gap.")
    ] = False,
) -> None:
    """Import the checkpoints of other, stopped consumers of the same log.

    Each shard continues at the record that they would have read next. For Kafka, their checkpoints
    are the committed offsets of a consumer group or a Spark query. For LogHub, they are the
    checkpoints of a consumer group. For Kinesis, they are in the lease table of a KCL application.
    """
    if (kind is Kind.SPARK_OFFSETS) != (location is not None):
        raise errors.InvalidSetting(
            "Give both --from spark-offsets and --checkpoint-location, or neither of them."
        )
    target, key = choice.opened()
    name = location or consumer_group or key.group
    declared = target.declared(key.stream)
    source = declared.source
    progress = other_consumers(
        declared, kind, name, stopped=stopped, failover_s=failover_s
    ).progress()
    if not live:
        _check_no_consumers(key, progress, target)
    target.store.sync_shards(key, source.list_shards(), observer=OBSERVER)
    leases = {lease.shard: lease for lease in target.store.snapshot(key).shards}
    import_plan = _import_plan(source, leases, progress.cursors)
    if import_plan.expired and not gaps:
        raise errors.CheckpointRefused(
            f"The records at the checkpoints of shards {listed(import_plan.expired)} in "
            f"{shown(name)} were removed before they were read: add --gaps to record these gaps "
            "and continue after them."
        )
    for shard in import_plan.changes if not force else ():
        _check_no_withdrawal(target, key, leases[shard], progress.cursors[shard], name)
    for shard in import_plan.changes:
        cursor = progress.cursors[shard]
        force_checkpoint(target, key, shard, cursor, reason="imported", reopen=Reopening.REFUSE)
    show_result(
        {"group": str(key), "consumer_group": name, "imported": import_plan.changes},
        f"Imported {counted(len(import_plan.changes), 'checkpoint')} of {shown(name)} into {key}.",
        *_shard_line("Unchanged shards", import_plan.unchanged),
        *_shard_line("Shards whose first unread records were removed", import_plan.expired),
        *_shard_line(f"Shards without a checkpoint in {shown(name)}", progress.unstored),
        *_shard_line("Shards that are no longer in the log", import_plan.removed),
        as_json=choice.as_json,
    )


@app.command("export")
def export(
    choice: NamedGroup,
    *,
    consumer_group: ExportedGroup = None,
    stopped: Stopped = False,
    live: Live = False,
    repeat: Annotated[
        bool,
        typer.Option(
            "--repeat",
            help="If a checkpoint is within a LogGroup, export the start of the LogGroup.",
        ),
    ] = False,
) -> None:
    """Export the checkpoints to a Kafka or LogHub consumer group.

    That group is created if it is missing, and continues each shard at the record that would be
    read here next. For Kafka, the checkpoints become its committed offsets. For LogHub, they become
    its checkpoints. For Kinesis, there is no export: Leasehold only reads the lease table of a KCL
    application.
    """
    target, key = choice.opened()
    name = consumer_group or key.group
    consumers = other_consumers(target.declared(key.stream), None, name, stopped=stopped)
    if not isinstance(consumers, TakesCheckpoints):
        raise errors.InvalidSetting(
            "Leasehold does not write the lease table of a KCL application: only checkpoints of "
            "Kafka and LogHub streams can be exported."
        )
    if not live:
        progress = consumers.progress() if consumers.exists() else GroupProgress({})
        _check_no_consumers(key, progress, target)
    leases = target.leases(key)
    cursors = {row.shard: row.check_point for row in leases if row.check_point is not None}
    within = consumers.within(cursors)
    if within and not repeat:
        raise errors.CheckpointRefused(
            f"The checkpoints of shards {listed(within)} of {key} are within a LogGroup, where the "
            "service has no cursors. Wait until more records are read, or add --repeat, so that "
            "the group reads the first records of these LogGroups again."
        )
    settings = target.group(key.stream, key.group)
    consumers.store(cursors, timeout_s=settings.timeout_s, ordered=settings.ordered)
    show_result(
        {"group": str(key), "consumer_group": name, "exported": list(cursors)},
        f"Exported {counted(len(cursors), 'checkpoint')} of {key} to {shown(name)}.",
        *_shard_line("Shards that start again at the begin of a LogGroup", within),
        *_shard_line(
            "Shards without a checkpoint here",
            [row.shard for row in leases if row.check_point is None],
        ),
        as_json=choice.as_json,
    )


def _check_no_consumers(key: GroupKey, progress: GroupProgress, target: Target) -> None:
    if progress.at_work:
        raise errors.GroupInUse(progress.at_work)
    shards = [lease.shard for lease in target.store.snapshot(key).shards if lease.consumer_run]
    if shards:
        raise errors.GroupInUse(
            f"Runs of {key} have shards {listed(sorted(shards, key=rank_key))} open. First drain "
            f"the group with `leasehold group drain {key.stream} --group {key.group}`, or add "
            "--live."
        )


def _import_plan(
    source: ShardSource, leases: Mapping[ShardId, ShardLease], cursors: Mapping[ShardId, str]
) -> ImportPlan:
    # Parents come first, since a parent's forced checkpoint can change its children.
    shards = sorted(cursors, key=rank_key)
    missing_shards = [shard for shard in shards if shard not in leases]
    if missing_shards:
        # The source raises if one of the shards was never in the log.
        source.bounds(missing_shards)
    present_shards = [shard for shard in shards if shard in leases]
    changes = [shard for shard in present_shards if leases[shard].check_point != cursors[shard]]
    unchanged = [shard for shard in present_shards if shard not in changes]
    expired: list[ShardId] = []
    for shard in changes:
        try:
            source.plan(shard, cursors[shard], Limits(records_max=1))
        except errors.CursorExpired:
            expired.append(shard)
    return ImportPlan(changes, unchanged, expired, missing_shards)


def _check_no_withdrawal(
    target: Target, key: GroupKey, lease: ShardLease, cursor: str, name: str
) -> None:
    if border_at(target, key, lease, cursor) is not None:
        raise errors.CheckpointRefused(
            f"Shard {lease.shard} of {key} is committed up to {lease.check_point}, beyond {cursor} "
            f"in {shown(name)}, so nothing was imported. Add --force to withdraw the later batches "
            "and read their records again."
        )


def _shard_line(title: str, shards: Iterable[ShardId]) -> list[str]:
    names = sorted(shards, key=rank_key)
    return [f"{title}: {listed(names)}."] if names else []
