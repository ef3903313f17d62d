"""Options that several commands share, so that each is called and explained the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import LeaseholdError


def stream_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The declared streams whose names begin so, for shell completion; none on any mistake."""
    from dagster_leasehold.orchestration.settings import load_settings

    try:
        declared = load_settings(home=ctx.params.get("home")).streams
    except LeaseholdError:
        return []
    return [stream.name for stream in declared if stream.name.startswith(incomplete)]


Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Folder of logs, leases and output (default: LEASEHOLD_HOME, then .leasehold).",
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        help="The stream; may be left out when only one is declared.",
        autocompletion=stream_names,
    ),
]
StreamArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM",
        help="The stream; may be left out when only one is declared.",
        autocompletion=stream_names,
    ),
]
GroupName = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group (default: the one the stream declares)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
