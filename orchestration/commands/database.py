"""`leasehold db`: the lease store's schema."""

from __future__ import annotations

import typer

from orchestration.commands.options import Home, Json
from orchestration.commands.progress import progress
from orchestration.commands.target import Target
from orchestration.presentation import tell

app = typer.Typer(help="Prepare the lease store's database.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Prepare the lease store's database."""


@app.command()
def upgrade(as_json: Json = False, home: Home = None) -> None:
    """Bring the schema of the lease store to this release; safe to repeat."""
    from lease_store import open_store

    target = Target.at(home)
    if target.settings.database_url is None:
        target.make_home()
    target.wake_mariadb()
    with progress("upgrading the schema"):
        open_store(target.settings.store_url, upgrade=True)
    where = described(target)
    tell(
        {"lease_store": where, "upgraded": True},
        f"The lease store {where} has the schema of this release.",
        as_json=as_json,
    )


def described(target: Target) -> str:
    """Where the lease store is, without its password."""
    from sqlalchemy.engine import make_url

    url = make_url(target.settings.store_url.get_secret_value())
    return url.set(query={}).render_as_string(hide_password=True)
