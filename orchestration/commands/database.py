"""`leasehold db`: the lease store's schema, and its move into another database."""

from __future__ import annotations

import os
import re
from typing import Annotated

import typer
from pydantic import SecretStr

from lease_store.errors import InvalidSetting
from orchestration.commands.options import Home, Json
from orchestration.commands.progress import progress
from orchestration.commands.target import Target
from orchestration.presentation import say, show_json, show_table, tell

app = typer.Typer(
    help="Prepare the lease store's database, or copy it into another one.", no_args_is_help=True
)


@app.callback()
def _group() -> None:
    """Prepare the lease store's database, or copy it into another one."""


@app.command()
def upgrade(
    url_env: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="VARIABLE",
            help="Another store than the settings': the environment variable with its URL.",
        ),
    ] = None,
    as_json: Json = False,
    home: Home = None,
) -> None:
    """Bring the schema of the lease store to this release; safe to repeat."""
    from lease_store import open_store

    if url_env is not None:
        url = url_in("--env", url_env)
    else:
        target = Target.at(home)
        if target.settings.database_url is None:
            target.make_home()
        target.wake_mariadb()
        url = target.settings.store_url
    with progress("upgrading the schema"):
        open_store(url, upgrade=True).close()
    where = described(url)
    tell(
        {"lease_store": where, "upgraded": True},
        f"The lease store {where} has the schema of this release.",
        as_json=as_json,
    )


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
    """Copy the lease store, whose groups are drained, into an empty one of the same schema.

    All tables in one transaction: checkpoints, ledger, journal, gaps and the rest. The groups stay
    paused in both stores. Exits with 1 if `verify` finds a violation in the copy.
    """
    from lease_store.store_copy import copy_store

    url = url_in("--to-env", to_env)
    source = Target.at(home)
    source.store.close()
    with progress("copying", "rows") as told:
        copied = copy_store(source.settings.store_url, url, told=told)
    before, after = described(source.settings.store_url), described(url)
    if as_json:
        groups = [str(key) for key in copied.groups]
        show_json(
            {
                "from": before,
                "to": after,
                "groups": groups,
                "rows": copied.rows,
                "violations": copied.violations,
            }
        )
    else:
        show_table("Rows copied", ("table", "rows"), copied.rows.items(), numeric=("rows",))
        for violation in copied.violations:
            say(f"VIOLATION: {violation}")
        number, rows = len(copied.groups), sum(copied.rows.values())
        say(f"From {before}")
        say(f"to {after}:")
        say(
            f"{number} consumer group{'s' if number != 1 else ''}, {rows:,} rows, "
            f"{len(copied.violations) or 'no'} violations. Paused in both stores: resume in one."
        )
    if copied.violations:
        raise typer.Exit(1)


def url_in(option: str, variable: str) -> SecretStr:
    """The URL that an environment variable holds: it may have a password, so it is no argument.

    Raises:
        InvalidSetting: that is no name of a variable, or it is not set.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # What was given may be the URL itself, with its password, so it is not shown.
        raise InvalidSetting(
            f"{option} takes the name of an environment variable that holds the URL, not the URL "
            "itself: export it, and give the variable's name."
        )
    url = os.environ.get(variable)
    if not url:
        raise InvalidSetting(
            f"The environment variable {variable} is not set: export the URL of the new lease "
            "store in it, such as mysql+pymysql://user:password@host:3306/database."
        )
    return SecretStr(url)


def described(store_url: SecretStr) -> str:
    """Where a lease store is, without its password."""
    from sqlalchemy.engine import make_url

    url = make_url(store_url.get_secret_value())
    return url.set(query={}).render_as_string(hide_password=True)
