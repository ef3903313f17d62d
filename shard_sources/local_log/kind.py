"""The local log as settings name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dagster_leasehold.shard_sources.local_log.log import LocalLog, LocalLogReader
from dagster_leasehold.shard_sources.source import ShardReader
from dagster_leasehold.shard_sources.source_kind import SourceKind, StreamPlace


class LocalLogOptions(BaseModel):
    """Options of a local log.

    Attributes:
        root: the log's folder; by default `logs/STREAM` in the home.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path | None = None


def _open(options: LocalLogOptions, place: StreamPlace) -> LocalLog:
    """The log; one that does not exist yet is reported by the first call that needs it."""
    return LocalLog(options.root or place.folder)


def _reader(options: Mapping[str, str]) -> ShardReader:
    return LocalLogReader(options["root"])


KIND = SourceKind(LocalLogOptions, _open, _reader)
