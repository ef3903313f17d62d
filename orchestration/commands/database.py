"""`leasehold db`: the lease store's schema."""

from __future__ import annotations

import typer

from orchestration.commands.options import Home
from orchestration.commands.target import Target
from orchestration.presentation import say

app = typer.Typer(help="Prepare the lease store's database.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Prepare the lease store's database."""


@app.command()
def upgrade(home: Home = None) -> None:
    """Bring the schema of the lease store to this release; safe to repeat."""
    from lease_store import open_store

    target = Target.at(home)
    if target.settings.database_url is None:
        target.make_home()
    target.wake_mariadb()
    open_store(target.settings.store_url, upgrade=True)
    say(f"The lease store {described(target)} has the schema of this release.")


def described(target: Target) -> str:
    """Where the lease store is, without its password."""
    from sqlalchemy.engine import make_url

    url = make_url(target.settings.store_url.get_secret_value())
    return url.set(query={}).render_as_string(hide_password=True)
