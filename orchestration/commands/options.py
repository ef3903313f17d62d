"""Options that several commands share, so that each is called and explained the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option("--stream", help="The stream; may be left out when only one is declared."),
]
GroupName = Annotated[
    str | None,
    typer.Option("--group", help="The consumer group (default: the one the stream declares)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
