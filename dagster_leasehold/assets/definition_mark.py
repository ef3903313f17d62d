"""The mark of a stream's definition: another one means that its code or its settings have changed.

A code server can load the same definition every minute, as Dagster's daemon has it do where it
starts the server itself. So a mark depends on the definition, not on when it was loaded.
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
"""The most source files of a user's package that are looked at."""
_LEFT_OUT = frozenset({"source", "transform", "on_commit", "asset_spec", "execute"})
"""Fields that are called, or only looked at in Dagster: no run stops for another value of one."""


def definition_mark(stream: ShardStream) -> str:
    """Return the mark of a stream's definition, the same in every process that loads it.

    It covers the declaration, and the source files of the package that the transform is in: their
    names, sizes and times of change.
    """
    parts = [RELEASE, type(stream.source).__qualname__]
    parts += [f"{key}={value}" for key, value in sorted(stream.source.spark_options().items())]
    for field in fields(stream):
        if field.name not in _LEFT_OUT:
            parts.append(f"{field.name}={getattr(stream, field.name)!r}")
    if stream.transform is not None:
        parts += [name_of(stream.transform), *_files_beside(stream.transform)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _files_beside(transform: Any) -> list[str]:
    """Return a line for each source file of the package, or of the module, of a transform."""
    kind = transform if hasattr(transform, "__qualname__") else type(transform)
    package = sys.modules.get(kind.__module__.partition(".")[0])
    files: Iterable[Path] = ()
    if folders := getattr(package, "__path__", None):
        files = (file for folder in folders for file in sorted(Path(folder).rglob("*.py")))
    elif name := getattr(package, "__file__", None):
        files = (Path(name),)
    lines: list[str] = []
    for file in files:
        try:
            row = file.stat()
        except OSError:
            continue
        lines.append(f"{file.name} {row.st_size} {row.st_mtime_ns}")
        if len(lines) >= FILES_MAX:
            break
    return lines
