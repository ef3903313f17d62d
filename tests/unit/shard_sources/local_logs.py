"""Small local logs for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.local_log.files import FileName, list_files, shard_folder
from dagster_leasehold.shard_sources.source import Limits, ReadRange
from tests.sources.world import values_of

NOW = datetime(2024, 6, 1, tzinfo=UTC)
ZERO = ShardId("0")


def new_log(folder: Path, shards: int = 2) -> LocalLog:
    return LocalLog.create(folder, shards, clock=lambda: NOW)


def read_all(log: LocalLog, shard: str = "0") -> list[bytes]:
    key = ShardId(shard)
    bounds = log.bounds([key])[key]
    assert log.plan(key, bounds.begin, Limits()).end == bounds.end
    return values_of(list(log.read(ReadRange(key, bounds.begin, bounds.end))))


def file_names(log: LocalLog, shard: str = "0") -> list[FileName]:
    return [*list_files(shard_folder(log.root, ShardId(shard)), 0)]


def data_files(log: LocalLog, shard: str = "0") -> list[Path]:
    return [name.path for name in file_names(log, shard)]
