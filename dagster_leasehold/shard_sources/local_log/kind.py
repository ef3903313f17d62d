"""The local log as a kind of source. `reading` is apart: Spark's workers can lack pydantic."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dagster_leasehold.shard_sources.local_log.log import LocalLog
from dagster_leasehold.shard_sources.local_log.reading import reader_of
from dagster_leasehold.shard_sources.registry import SourceKind, StreamPlace


class LocalLogOptions(BaseModel):
    """Options of a local log.

    Attributes:
        root: the log's folder; by default `logs/STREAM` in the home.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: Path | None = None


def _open(options: LocalLogOptions, place: StreamPlace) -> LocalLog:
    return LocalLog(options.root or place.folder)


KIND = SourceKind(LocalLogOptions, _open, reader_of)
