"""`leasehold db`: upgrades, prunes or copies the lease store, or takes over an output folder."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Annotated

import typer
from pydantic import SecretStr

from dagster_leasehold.lease_store.errors import InvalidSetting, counted
from dagster_leasehold.lease_store.pruning import history_age
from dagster_leasehold.orchestration import presentation
from dagster_leasehold.orchestration.commands.options import Home, Json
from dagster_leasehold.orchestration.commands.target import NamedGroup, Target
from dagster_leasehold.orchestration.progress_display import progress

app = typer.Typer(
    help="Upgrade, prune or copy the lease store, or take over an output folder.",
    no_args_is_help=True,
)
OtherStore = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="VARIABLE",
        help="The environment variable with the URL of another lease store, to use that one.",
    ),
]


@app.callback()
def _group() -> None:
    """Upgrade, prune or copy the lease store, or take over an output folder."""


@app.command()
def upgrade(url_env: OtherStore = None, as_json: Json = False, home: Home = None) -> None:
    """Upgrade the schema of the lease store to this release; safe to repeat.

    First stop the nodes with releases that cannot use the new schema. Other nodes can keep running.
    """
    from dagster_leasehold.lease_store import open_store

    if url_env is not None:
        url = url_in("--env", url_env)
    else:
        target = Target.at(home)
        if target.settings.database_url is None:
            target.make_home()
        url = target.settings.store_url
    with progress("upgrading the schema"):
        store = open_store(url)
        store.upgrade()
        store.close()
    where = masked_url(url)
    presentation.show_result(
        {"lease_store": where, "upgraded": True},
        f"The lease store {where} has the schema of this release.",
        as_json=as_json,
    )


@app.command()
def prune(
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            help="Delete rows older than this many days (default: the setting history_days).",
        ),
    ] = None,
    url_env: OtherStore = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Delete old journal entries, delivered events, accepted gaps and merged rows of the ledger.

    Keeps the rows that `verify` needs. The step `janitor` does the same every hour. Exits with 1 if
    some rows could not be deleted.
    """
    from dagster_leasehold.lease_store import open_store
    from dagster_leasehold.lease_store.pruning import prune as prune_group

    target = Target.at(home)
    age = target.settings.history_age if older_than is None else history_age(older_than)
    if age is None:
        raise InvalidSetting(
            "The setting history_days keeps all history: give the age with --older-than."
        )
    store = target.store if url_env is None else open_store(url_in("--env", url_env))
    rows: Counter[str] = Counter()
    failures: list[str] = []
    with progress("deleting old rows", "rows") as show:
        for group in store.groups():
            before = rows.total()
            report = prune_group(
                store, group.key, age, lambda count, before=before: show(before + count)
            )
            rows += report.rows
            failures += report.failures
    if as_json:
        presentation.show_json({"older_than_days": age.days, "rows": rows, "failures": failures})
    else:
        if rows:
            presentation.show_table("Rows deleted", "table, >rows", sorted(rows.items()))
        for failure in failures:
            presentation.say(failure)
        presentation.say(f"Deleted {rows.total():,} rows older than {age.days} days.")
    if failures:
        raise typer.Exit(1)


@app.command()
def copy(
    to_env: Annotated[
        str,
        typer.Option(
            "--to-env",
            metavar="VARIABLE",
            help="The environment variable with the URL of the new lease store.",
        ),
    ],
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Copy the lease store into an empty one of the same schema; its groups must be drained.

    One transaction copies everything. The groups stay paused in both stores. Exits with 1 if
    `verify` finds a violation in the copy.
    """
    from dagster_leasehold.lease_store.store_copy import copy_store

    url = url_in("--to-env", to_env)
    source = Target.at(home)
    source.store.close()
    with progress("copying", "rows") as show:
        report = copy_store(source.settings.store_url, url, report=show)
    before, after = masked_url(source.settings.store_url), masked_url(url)
    if as_json:
        groups = [str(key) for key in report.groups]
        presentation.show_json(
            {
                "from": before,
                "to": after,
                "groups": groups,
                "rows": report.rows,
                "violations": report.violations,
            }
        )
    else:
        presentation.show_table("Rows copied", "table, >rows", report.rows.items())
        for violation in report.violations:
            presentation.say(f"VIOLATION: {violation}")
        groups, rows = len(report.groups), sum(report.rows.values())
        presentation.say(f"From {before}")
        presentation.say(f"to {after}:")
        presentation.say(
            f"{counted(groups, 'consumer group')}, {rows:,} rows, "
            f"{len(report.violations) or 'no'} violations. The groups are paused in both stores: "
            "resume them in one."
        )
    if report.violations:
        raise typer.Exit(1)


@app.command("take-over")
def take_over(choice: NamedGroup) -> None:
    """Make this lease store the owner of a stream's output folder.

    Use it only if the former owner no longer exists: each store removes files that are not in its
    own ledger. The former owner can no longer use the folder.
    """
    from dagster_leasehold.assets.output.folder_owner import take_over as take_folder_over

    target, key = choice.opened()
    folder = target.output(key)
    before, after = take_folder_over(target.store, folder)
    former = ", and no longer to another store" if before and before != after else ""
    presentation.show_result(
        {"output": str(folder), "owner": after, "former_owner": before},
        f"The output folder of {key} now belongs to this lease store{former}.",
        as_json=choice.as_json,
    )


def url_in(option: str, variable: str) -> SecretStr:
    """Return the URL in an environment variable; unlike an option, it can have a password."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # The message leaves out the value, which can be a URL with a password.
        raise InvalidSetting(
            f"{option} takes the name of an environment variable with the URL, not the URL itself: "
            "export the URL in a variable, and give the variable's name."
        )
    url = os.environ.get(variable)
    if not url:
        raise InvalidSetting(
            f"The environment variable {variable} is not set: export the URL of the new lease "
            "store in it, such as mysql+pymysql://user:password@host:3306/database."
        )
    return SecretStr(url)


def masked_url(store_url: SecretStr) -> str:
    """Return the address of a lease store without its password."""
    from sqlalchemy.engine import make_url

    url = make_url(store_url.get_secret_value())
    return url.set(query={}).render_as_string(hide_password=True)
