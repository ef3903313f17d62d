"""Options that several commands share, so that each is named and explained the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import LeaseholdError

OBSERVER = "command line"
"""The observer of all that commands write into the journal."""


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the declared streams whose names begin so, for shell completion; none on a mistake."""
    from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
    from dagster_leasehold.orchestration.settings import load_settings

    try:
        names = DeclaredStreams(load_settings(home=ctx.params.get("home"))).names
    except LeaseholdError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Folder of logs, leases and output (default: LEASEHOLD_HOME, else .leasehold).",
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        help="The stream; may be omitted if only one is declared.",
        autocompletion=stream_names,
    ),
]
StreamArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM",
        help="The stream; may be omitted if only one is declared.",
        autocompletion=stream_names,
    ),
]
GroupName = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group (default: the one the stream declares)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
OneShard = Annotated[str | None, typer.Option("--shard", help="Only this shard.")]
Shards = Annotated[
    list[str] | None,
    typer.Option("--shard", metavar="SHARD", help="A shard; may be repeated (default: all)."),
]
Start = Annotated[
    str | None, typer.Option("--from", help="Where to start: begin, a cursor or an ISO 8601 time.")
]
End = Annotated[
    str | None, typer.Option("--to", help="Where to stop: end, a cursor or an ISO 8601 time.")
]
Replaces = Annotated[
    str | None,
    typer.Option(
        "--replaces", help="Take over from this rewriting run, which has certainly ended."
    ),
]
StreamModule = Annotated[
    str | None,
    typer.Option(
        "--module",
        help="The Python module that declares the stream (default: the one of the settings).",
    ),
]
DefinitionsModule = Annotated[
    str | None,
    typer.Option("--module", help="Your module of definitions (default: the one of the settings)."),
]
WebPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=1,
        max=65535,
        help="Port of the web page (default: the first free one from 3000).",
    ),
]
