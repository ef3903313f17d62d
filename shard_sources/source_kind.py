"""A kind of source: what a package says of itself under its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.shard_sources.source import ShardReader, ShardSource


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The stream that a source is opened for.

    Attributes:
        stream: its name; a source takes it for the name in the service where no option says
            otherwise.
        folder: a folder of the stream's own in the home; it may not exist yet.
    """

    stream: StreamName
    folder: Path


@dataclass(frozen=True, slots=True)
class SourceKind:
    """How sources of one kind are declared, opened, and read in Spark's workers.

    Attributes:
        options: the pydantic model of `[streams.options]`. It forbids unknown options, and none
            of them is a secret: an option names the environment variable that holds one.
        open: from checked options to a source; it asks the service nothing yet.
        reader: from `ShardSource.spark_options` to a reader.
        library: the top-level module of the client library; empty where none is needed.
        install: the command that installs that library.
    """

    options: type[BaseModel]
    open: Callable[[Any, StreamPlace], ShardSource]
    reader: Callable[[Mapping[str, str]], ShardReader]
    library: str = ""
    install: str = ""
