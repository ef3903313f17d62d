"""`leasehold publish`: publishes committed output, and overrides checks that hold it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.lease_store.errors import InvalidSetting, listed
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.orchestration import presentation
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.commands.status import held_fields
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target

if TYPE_CHECKING:
    from dagster_leasehold.assets.output.table.publisher import Publisher
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.lease_store.identifiers import GroupKey
    from dagster_leasehold.lease_store.publication_rows import PublishLock, TableName

LOCK_TRIES, LOCK_WAIT_S = 30, 1.0


def publish(
    choice: NamedGroup,
    shard: options.AnyShard = None,
    *,
    override: Annotated[
        bool, typer.Option("--override", help="Publish held output although a check failed.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="The reason of --override, for the journal.")
    ] = "",
) -> None:
    """Publish committed output, and check held output again.

    Exits with 1 if output is still held.
    """
    from dagster_leasehold.assets.output.table.completeness import ShardTimesReader

    if override and not reason.strip():
        raise InvalidSetting("--override needs a reason for the journal: add --reason TEXT.")
    target, declared = choice.declared()
    key, store = declared.key, target.store
    named = target.named_shard(key, shard)
    overridden = [
        each.shard
        for each in (store.held_output(key) if override else ())
        if named in (None, each.shard)
        and isinstance(
            store.override_hold(key, each.shard, observer=options.OBSERVER, reason=reason), Changed
        )
    ]
    publisher = open_publisher(target, declared)
    seen = ShardTimesReader(declared, store, time.monotonic).read()
    lock = wait_for_lock(target, publisher.group.name, publisher.key)
    try:
        ended = publisher.check_held(lock)
        report = publisher.publish(lock, seen)
        while report.more:
            report = report.plus(publisher.publish(lock, seen))
    finally:
        store.release_publish_lock(lock)
    held = store.held_output(key)
    done = [f"Overrode the checks of shards {listed(overridden)}."]
    presentation.show_result(
        {
            "group": str(key),
            "overridden": overridden,
            "passed": ended,
            "batches": report.batches,
            "records": report.records,
            "held": [held_fields(each) for each in held],
        },
        *(done if overridden else ()),
        str(report),
        *map(str, held),
        as_json=choice.as_json,
    )
    if held:
        raise typer.Exit(1)


def open_publisher(target: Target, declared: ShardStream, *, creates: bool = True) -> Publisher:
    """Return the publisher of a declared stream's table.

    `creates` creates the table if its catalog assigns the location.
    """
    from dagster_leasehold.assets.output.table.assigned_location import create_assigned_table
    from dagster_leasehold.assets.output.table.group_table import build_publisher

    key, catalog = declared.key, target.settings.catalog_settings
    if creates and catalog.assigns:
        create_assigned_table(target.store, key, declared.iceberg, catalog)
    return build_publisher(
        store=target.store,
        key=key,
        settings=declared.iceberg,
        catalog=catalog,
        place=target.output(key),
        watermark=declared.watermark_of_batch,
    )


def wait_for_lock(target: Target, name: TableName, key: GroupKey) -> PublishLock:
    """Take the publish lock; wait some time for another process to release it."""
    from dagster_leasehold.assets.output.table.publish_locks import take_lock
    from dagster_leasehold.lease_store.publication_rows import PublishLock

    reason = ""
    for attempt in range(LOCK_TRIES):
        if attempt:
            time.sleep(LOCK_WAIT_S)
        nodes = target.store.pulse(key).nodes
        alive = {node.name: node.incarnation for node in nodes if node.member}
        lock = take_lock(target.store, key, name, alive or {None: ""})
        if isinstance(lock, PublishLock):
            return lock
        reason = lock.explanation
    raise TableUnavailable(
        f"{reason} Start the deployment, which publishes by itself, or repeat this command."
    )
