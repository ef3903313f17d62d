"""`leasehold vacuum`: drops expired output, and removes files that are not in the ledger."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, counted, shown
from dagster_leasehold.lease_store.pruning import OutputExpiry, PruneReport, expire, output_age
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target
from dagster_leasehold.orchestration.presentation import say, show_json
from dagster_leasehold.orchestration.progress_display import progress

if TYPE_CHECKING:
    from dagster_leasehold.assets.rewriting.vacuum import VacuumReport
    from dagster_leasehold.lease_store.identifiers import GroupKey

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGE_MIN = timedelta(minutes=1)
SHOWN_MAX = 20


def vacuum(
    choice: NamedGroup,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", help="The minimum age of removed files, such as 90m, 1h or 7d."
        ),
    ] = "1h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
    expire_days: Annotated[
        float | None,
        typer.Option(
            "--expire-days",
            metavar="DAYS",
            help="First drop output older than this (default: the stream's output_days; if that is "
            "not set, no output expires).",
        ),
    ] = None,
) -> None:
    """Drop expired output, and remove old files that are not in the ledger.

    Choose an age longer than any query. Exits with 1 if some output could not be dropped.
    """
    from dagster_leasehold.assets.rewriting.vacuum import vacuum as remove_files

    age = duration(older_than)
    if age < AGE_MIN:
        raise InvalidSetting(
            f"--older-than is {older_than}: use at least 1m, since readers that have listed files "
            "need time to read them."
        )
    target, key = choice.opened()
    folder = target.output(key)
    declared = target.declared(choice.stream)
    days = declared.retention.output_days if expire_days is None else expire_days
    expiry = _expire(target, key, output_age(days), dry_run=dry_run)
    with progress("finding unneeded files"):
        report = remove_files(
            target.store,
            key,
            folder,
            older_than=age,
            dry_run=dry_run,
            catalog=target.settings.catalog_settings,
        )
    _show(key, expiry, report, days, dry_run=dry_run, as_json=choice.as_json)
    if expiry.failures:
        raise typer.Exit(1)


def _show(
    key: GroupKey,
    expiry: PruneReport,
    report: VacuumReport,
    days: float | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        show_json(
            {
                "group": str(key),
                "dry_run": dry_run,
                "expired": expiry.expired,
                "failures": expiry.failures,
                "report": report,
            }
        )
        return
    if expiry.expired:
        action = "Would drop" if dry_run else "Dropped"
        say(
            f"{action} {expiry.expired:,} ledger rows of {key} whose output is older than "
            f"{days:g} days."
        )
    for path in report.removed[:SHOWN_MAX]:
        say(path)
    if len(report.removed) > SHOWN_MAX:
        say(f"… and {len(report.removed) - SHOWN_MAX:,} more")
    action = "Would remove" if dry_run else "Removed"
    say(
        f"{action} {counted(len(report.removed), 'file')} of {key} with "
        f"{report.removed_bytes:,} bytes. "
        f"Kept {report.committed:,} committed files, {report.young:,} younger files, and "
        f"{report.in_progress:,} files of attempts in progress."
    )
    for failure in expiry.failures:
        say(failure)


def _expire(target: Target, key: GroupKey, age: timedelta | None, *, dry_run: bool) -> PruneReport:
    """Drop a group's output older than `age`; a dry run only counts ledger rows.

    The dry run also counts rows that a real run keeps because their file has newer records.
    """
    from dagster_leasehold.assets.output.attempts import touch_replaced

    if age is None:
        return PruneReport()
    if not dry_run:
        output = OutputExpiry(age, partial(touch_replaced, target.own_output(key)))
        with progress("dropping expired output", "rows") as advance:
            return expire(target.store, key, output, advance)
    newest = target.store.reference_time(key)
    if newest is None:
        return PruneReport()
    oldest = newest - age
    rows = 0
    for shard in target.store.heads(key):
        old_rows = takewhile(
            lambda row: row.committed_at is not None and row.committed_at < oldest,
            target.store.each_batch(key, shard),
        )
        rows += sum(1 for _ in old_rows)
    return PruneReport(expired=rows)


def duration(text: str) -> timedelta:
    """Parse a duration: a number with the unit s, m, h or d."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if not match:
        raise InvalidSetting(
            f"{shown(text)} is not a duration: use a number with s, m, h or d, such as 1h."
        )
    import pendulum

    return pendulum.duration(**{_UNITS[match[2]]: int(match[1])})
