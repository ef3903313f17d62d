"""`leasehold vacuum`: remove files that nobody needs any more."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.orchestration.commands.options import GroupName, Home, Json, StreamArgument
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.presentation import progress, say, show_json

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
AGE_MIN = timedelta(minutes=1)
SHOWN_MAX = 20


def vacuum(
    stream: StreamArgument = None,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", help="The least age of a file to remove, such as 90m, 1h or 7d."
        ),
    ] = "1h",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
    group: GroupName = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Remove old output files that the ledger does not name.

    Failed attempts left them, or replay and compaction replaced them. Choose an age longer than any
    reader takes: one that listed files before they were replaced may still read them.
    """
    from dagster_leasehold.assets.rewriting.vacuum import vacuum as removed_by

    age = duration(older_than)
    if age < AGE_MIN:
        raise InvalidSetting(
            f"--older-than is {older_than}: use at least 1m, since readers that have listed files "
            "need time to read them."
        )
    target = Target.at(home)
    key = target.group(stream, group).key
    folder = target.settings.output_folder(key.stream, key.group)
    with progress("looking for files that nobody needs"):
        report = removed_by(target.store, key, folder, older_than=age, dry_run=dry_run)
    if as_json:
        show_json({"group": str(key), "dry_run": dry_run, "report": report})
        return
    for path in report.removed[:SHOWN_MAX]:
        say(path)
    if len(report.removed) > SHOWN_MAX:
        say(f"… and {len(report.removed) - SHOWN_MAX:,} more")
    done = "Would remove" if dry_run else "Removed"
    say(
        f"{done} {len(report.removed):,} files of {key}, {report.removed_bytes:,} bytes; kept "
        f"{report.committed:,} committed, {report.young:,} younger, {report.in_progress:,} of "
        "attempts under way."
    )


def duration(text: str) -> timedelta:
    """Return the duration that a number with a unit means: s, m, h or d.

    Raises:
        InvalidSetting: it is not of that form.
    """
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if not match:
        raise InvalidSetting(
            f"{shown(text)} is not a duration: use a number with s, m, h or d, like 1h."
        )
    return timedelta(seconds=int(match[1]) * _UNITS_S[match[2]])
