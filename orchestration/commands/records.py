"""`leasehold load` and `leasehold cat`: records into a local log, and committed ones out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.commands.options import GroupName, Home, Stream
from orchestration.commands.target import Target
from orchestration.input_files import check_readable
from orchestration.presentation import iso, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

SHARDS_DEFAULT = 8


def cat(
    stream: Annotated[str | None, typer.Argument(help="The stream.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="One shard only.")] = None,
    group: GroupName = None,
    home: Home = None,
) -> None:
    """Print committed records as JSON lines, in order per shard."""
    from assets.committed_output import iter_records

    target = Target.at(home)
    key = target.group(stream, group).key
    wanted = target.shard(key, shard).shard if shard is not None else None
    folder = target.settings.output_folder(key.stream, key.group)
    for batch in iter_records(target.store, key, folder, shard=wanted):
        sys.stdout.writelines(json_lines(batch))


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """Each record of a batch as one line of JSON; columns of a transform follow the source's."""
    for row in batch.to_pylist(maps_as_pydicts="strict"):
        yield json.dumps(json_record(row), ensure_ascii=False, default=str) + "\n"


def json_record(row: dict[str, Any]) -> dict[str, Any]:
    """A record with its times in ISO 8601 and its bytes as text, or as base64 where they are not.

    A column of bytes that are not UTF-8 goes out under its name with `_base64` added.
    """
    from base64 import b64encode
    from datetime import datetime

    record: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                record[name] = value.decode("utf-8")
            except UnicodeDecodeError:
                record[f"{name}_base64"] = b64encode(value).decode("ascii")
        elif isinstance(value, datetime):
            record[name] = iso(value)
        else:
            record[name] = value
    return record


def load(
    files: Annotated[list[Path], typer.Argument(help="Files; a record is one line.")],
    stream: Stream = None,
    shards: Annotated[
        int, typer.Option("--shards", min=1, max=4096, help="Shards of a log made now.")
    ] = SHARDS_DEFAULT,
    home: Home = None,
) -> None:
    """Append the lines of files to the local log of a stream, which is made where there is none."""
    from shard_sources.local_log import LocalLog

    target = Target.at(home)
    declared = target.declared(stream)
    check_readable(files)
    target.make_home()
    log = target.local_log(declared.name)
    if not log.exists:
        log = LocalLog.create(log.root, shards)
    appended = log.append_lines(*files)
    records = sum(int(part.end) - int(part.begin) for part in appended.values())
    say(f"Loaded {records:,} records into {len(appended)} shards of stream {declared.name}.")
