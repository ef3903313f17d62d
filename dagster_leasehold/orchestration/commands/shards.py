"""`leasehold shard`: lists, splits and merges the shards of a local log."""

from __future__ import annotations

from typing import Annotated

import typer

from dagster_leasehold.orchestration.commands.options import AnyStream, Shard, Stream
from dagster_leasehold.orchestration.commands.target import DeploymentChoice
from dagster_leasehold.orchestration.presentation import show_json, show_result, show_table

app = typer.Typer(help="List, split and merge the shards of a local log.", no_args_is_help=True)


@app.command("list")
def list_(stream: AnyStream = None, *, choice: DeploymentChoice) -> None:
    """List the shards of a stream, each with its range of cursors."""
    source = choice.target.declared(stream).source
    listing = source.list_shards()
    bounds = source.bounds([entry.shard for entry in listing])
    if choice.as_json:
        show_json(
            [
                {
                    "shard": entry.shard,
                    "parents": entry.parents,
                    "read_only": entry.read_only,
                    "hash_begin": entry.hash_begin,
                    "hash_end": entry.hash_end,
                    "begin": bounds[entry.shard].begin,
                    "end": bounds[entry.shard].end,
                }
                for entry in listing
            ]
        )
        return
    show_table(
        "Shards",
        "shard, parents, read-only, >begin, >end, hash range",
        (
            (
                entry.shard,
                ", ".join(entry.parents),
                entry.read_only,
                bounds[entry.shard].begin,
                bounds[entry.shard].end,
                f"{entry.hash_begin[:8]}… to {entry.hash_end[:8]}…",
            )
            for entry in listing
        ),
    )


@app.command()
def split(stream: Stream, shard: Shard, choice: DeploymentChoice) -> None:
    """Split a shard: it becomes read-only, and two children share its hash range."""
    log = choice.target.local_log(stream)
    first, second = log.split(shard)
    show_result(
        {"parents": [shard], "children": [first, second]},
        f"Split shard {shard} into {first} and {second}.",
        as_json=choice.as_json,
    )


@app.command()
def merge(
    stream: Stream,
    first: Shard,
    second: Annotated[
        str, typer.Argument(metavar="NEIGHBOUR", help="A shard whose hash range is next to it.")
    ],
    choice: DeploymentChoice,
) -> None:
    """Merge two neighbouring shards: they become read-only, and one child has both hash ranges."""
    log = choice.target.local_log(stream)
    child = log.merge(first, second)
    show_result(
        {"parents": [first, second], "children": [child]},
        f"Merged shards {first} and {second} into {child}.",
        as_json=choice.as_json,
    )
