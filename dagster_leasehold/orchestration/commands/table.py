"""`leasehold table`: publishes committed output, compares the table with the ledger, evolves it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.assets.errors import TableElsewhere, TableUnavailable
from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.orchestration import presentation
from dagster_leasehold.orchestration.commands import options
from dagster_leasehold.orchestration.commands.publish import open_publisher, wait_for_lock
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target
from dagster_leasehold.orchestration.progress_display import progress

if TYPE_CHECKING:
    from dagster_leasehold.assets.places.place import OutputPlace
    from dagster_leasehold.assets.shard_stream import ShardStream

DIFFERENCES_SHOWN_MAX = 20

app = typer.Typer(
    help="Publish committed output to a stream's table, and compare the table with the ledger.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Publish committed output to a stream's table, and compare the table with the ledger."""


@app.command()
def create(
    choice: NamedGroup,
    *,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="After a restore of the lease store: first roll the ledger forward to the table.",
        ),
    ] = False,
) -> None:
    """Create the stream's table if it is missing, and publish all committed output.

    No data file is rewritten. Also compares the table with the ledger, file by file, and exits with
    1 if they differ.
    """
    _publish(*choice.declared(), adopt=adopt, as_json=choice.as_json)


@app.command()
def move(choice: NamedGroup) -> None:
    """Move the stream's table to the name and catalog in the settings, or to a moved home.

    First stop the deployment. No data file is written.
    """
    from dagster_leasehold.assets.output.table.group_table import find_table
    from dagster_leasehold.assets.output.table.staging import METADATA_FOLDER

    target, declared = choice.declared()
    key = declared.key
    place = target.output(key)
    if _rename(target, declared, place, as_json=choice.as_json):
        return
    try:
        published = find_table(target.store, key, target.settings.catalog_settings, place)
    except TableElsewhere as error:
        metadata = f"{METADATA_FOLDER}/{error.at.rpartition('/')[2]}"
        if (place / metadata).content() is None:
            raise TableUnavailable(
                f"There is no {metadata} in {place}: move all output to the folder of the setting "
                "output, and repeat this command."
            ) from None
        _publish(target, declared, adopt=True, as_json=choice.as_json)
        return
    if published is None:
        raise TableUnavailable(f"{key} has no published output, so there is no table to move.")
    table, io = published
    if (at := table.metadata.location.rstrip("/")) != io.location:
        raise TableUnavailable(
            f"The table's location in the catalog is {at}: remove the table from the catalog, but "
            f"not its files, and recreate it with `leasehold table create {choice.stream} --adopt`."
        )
    presentation.show_result(
        {"moved": False},
        f"The location of {key}'s table is already correct.",
        as_json=choice.as_json,
    )


@app.command()
def evolve(
    choice: NamedGroup,
    *,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a column; repeat for more.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove a column; repeat for more.")
    ] = None,
    restore: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Show a removed column again.")
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the changes; otherwise only show them.")
    ] = False,
) -> None:
    """Rename or remove columns of the stream's table; without --apply, only show the changes.

    No data file is rewritten. Columns keep their field ids, and engines read old and new files.
    """
    from dagster_leasehold.assets.output.table.evolution import (
        Evolution,
        apply_evolution,
        plan_evolution,
    )

    target, declared = choice.declared()
    evolution = Evolution(_names(rename or ()), remove or (), restore or ())
    publisher = open_publisher(target, declared, creates=False)
    if apply:
        lock = wait_for_lock(target, publisher.group.name, declared.key)
        try:
            plan = apply_evolution(publisher, lock, evolution, options.OBSERVER)
        finally:
            target.store.release_publish_lock(lock)
    else:
        plan = plan_evolution(publisher, evolution)
    end = "Applied." if apply else "Nothing was changed: repeat the command with --apply."
    presentation.show_result(
        {"applied": apply, "changes": plan.sentences},
        *(plan.sentences or ["The table already has these columns."]),
        *([end] if plan.sentences else []),
        as_json=choice.as_json,
    )


def _names(renames: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in renames:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise InvalidSetting(f"{shown(text)} is not a rename: write OLD=NEW.")
        if old in names:
            raise InvalidSetting(f"Column {shown(old)} is to be renamed twice: give one new name.")
        names[old] = new
    return names


def _rename(target: Target, declared: ShardStream, place: OutputPlace, *, as_json: bool) -> bool:
    """Move the table to the name and catalog in the settings; return False if it is there."""
    from dagster_leasehold.assets.output.table.metadata_files import PlaceIO
    from dagster_leasehold.assets.output.table.moving import TableMove
    from dagster_leasehold.assets.places.address import location_of

    catalog, key = target.settings.catalog_settings, declared.key
    publication = target.store.publication(key)
    after = declared.iceberg.table_name(catalog.name, key)
    before = None if publication is None else publication.table
    entered = bool(catalog.properties) and target.store.table_pointer(after) is not None
    if before is None or (before == after and not entered):
        return False
    move = TableMove(target.store, before, after, catalog, PlaceIO(place, location_of(place)))
    lock = wait_for_lock(target, before, key)
    try:
        remains = move.carry_out(lock)
    finally:
        target.store.release_publish_lock(lock)
    former = f"{before.namespace}.{before.name} of catalog {before.catalog}"
    note = (f"Remove the entry {former}, but not its files.",) if remains else ()
    presentation.show_result(
        {"moved": True, "from": str(before), "to": str(after)},
        f"The table {former} is now {after.namespace}.{after.name} of catalog {after.catalog}.",
        *note,
        as_json=as_json,
    )
    return True


def _publish(target: Target, declared: ShardStream, *, adopt: bool, as_json: bool) -> None:
    from dagster_leasehold.assets.output.table.completeness import ShardTimesReader

    key, publisher = declared.key, open_publisher(target, declared)
    name = publisher.group.name
    seen = ShardTimesReader(declared, target.store, time.monotonic).read()
    lock = wait_for_lock(target, name, key)
    try:
        lags = target.store.publication_lag(key)
        total = None if any(lag.more for lag in lags) else sum(lag.batches for lag in lags)
        with progress("publishing", "batches", total) as show:
            report = publisher.adopt(lock, _print_note) if adopt else publisher.publish(lock, seen)
            while report.more:
                report = report.plus(publisher.publish(lock, seen))
                show(report.batches)
        comparison = publisher.comparison.compare()
    finally:
        target.store.release_publish_lock(lock)
    differences = comparison.differences
    examples = " ".join(differences[:DIFFERENCES_SHOWN_MAX])
    verdict = (
        f"they differ from the ledger's: {examples}" if examples else "they equal the ledger's."
    )
    presentation.show_result(
        {
            "table": [name.catalog, name.namespace, name.name],
            "batches": report.batches,
            "records": report.records,
            "files": comparison.files,
            "differences": differences,
            "notes": comparison.notes,
            "rejected": report.rejected,
        },
        f"Published {report.batches:,} batches of {report.records:,} records to the table "
        f"{name.namespace}.{name.name} of catalog {name.catalog}.",
        *report.rejected,
        f"The table has {comparison.files:,} files; {verdict}",
        *comparison.notes,
        as_json=as_json,
    )
    if differences:
        raise typer.Exit(1)


def _print_note(sentence: str) -> None:
    typer.echo(sentence, err=True)
