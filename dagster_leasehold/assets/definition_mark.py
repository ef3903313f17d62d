"""The mark of a stream's definition, which changes when its code or its settings change.

The rebalance sensor ends runs with an older mark. The mark does not depend on the time of loading:
if Dagster's daemon starts the code server itself, it starts a new one every minute, and that
server loads the same definition again.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.arrow_transform import name_of
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.release import RELEASE

FILES_MAX = 2_000
"""The most source files of a user's package that a mark covers."""
_EXCLUDED = frozenset({"source", "transform", "on_commit", "asset_spec", "execute"})
"""Fields whose `repr` is not in the mark. `definition_mark` adds the source and the transform in
another form, and ignores the other callables."""


def definition_mark(stream: ShardStream) -> str:
    """Return the mark of a stream's definition, the same in every process that loads it.

    It covers the declaration, and the names, sizes and modification times of the schema's file and
    of the source files in the package of the transform.
    """
    parts = [RELEASE, type(stream.source).__qualname__]
    parts += [f"{key}={value}" for key, value in sorted(stream.source.spark_options().items())]
    for field in fields(stream):
        if field.name not in _EXCLUDED:
            parts.append(f"{field.name}={getattr(stream, field.name)!r}")
    if stream.decode is not None and stream.decode.schema_file:
        parts += _lines_of([Path(stream.decode.schema_file)])
    if stream.transform is not None:
        parts += [name_of(stream.transform), *_source_files(stream.transform)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _source_files(transform: Any) -> list[str]:
    """Return the lines of the source files of a transform's package, or of its module."""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    package = sys.modules.get(named.__module__.partition(".")[0])
    files: Iterable[Path] = ()
    if folders := getattr(package, "__path__", None):
        files = (file for folder in folders for file in sorted(Path(folder).rglob("*.py")))
    elif name := getattr(package, "__file__", None):
        files = (Path(name),)
    return _lines_of(files)


def _lines_of(files: Iterable[Path]) -> list[str]:
    """Return a line for each file that exists."""
    lines: list[str] = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        lines.append(f"{file.name} {stat.st_size} {stat.st_mtime_ns}")
        if len(lines) >= FILES_MAX:
            break
    return lines
