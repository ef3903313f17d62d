"""Options that several commands share, with the same names and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import LeaseholdError

OBSERVER = "command line"
"""The observer in journal entries that commands write."""


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the streams whose names start with `incomplete`, for shell completion."""
    from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
    from dagster_leasehold.orchestration.settings import load_settings

    try:
        settings = load_settings(home=ctx.params.get("home"))
        names = DeclaredStreams(settings, ctx.params.get("module")).names
    except LeaseholdError:
        return []
    return [name for name in names if name.startswith(incomplete)]


Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Folder of logs, leases and output (default: LEASEHOLD_HOME, otherwise .leasehold).",
    ),
]
AnyStream = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM",
        help="The stream (default: the only declared stream).",
        autocompletion=stream_names,
    ),
]
"""For commands that only read."""
Stream = Annotated[
    str, typer.Argument(metavar="STREAM", help="The stream.", autocompletion=stream_names)
]
"""For commands that change something: the user must give the stream."""
GroupName = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group (default: the stream's declared group)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
AnyShard = Annotated[
    str | None, typer.Argument(metavar="SHARD", help="Only this shard (default: all).")
]
Shard = Annotated[str, typer.Argument(metavar="SHARD", help="The shard.")]
Shards = Annotated[
    list[str] | None, typer.Argument(metavar="SHARD", help="Only these shards (default: all).")
]
Start = Annotated[
    str | None, typer.Option("--from", help="Where to start: begin, a cursor or an ISO 8601 time.")
]
End = Annotated[
    str | None, typer.Option("--to", help="Where to stop: end, a cursor or an ISO 8601 time.")
]
Replaces = Annotated[
    str | None,
    typer.Option("--replaces", help="Take over the claim of this run, which must have ended."),
]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        help="The Python module that declares the streams (default: the module of the settings, "
        "otherwise of the project in this folder).",
    ),
]
WebPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=1,
        max=65535,
        help="Port of the Dagster UI (default: the first free port from 3000).",
    ),
]
