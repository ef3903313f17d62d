"""Kinesis as settings name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dagster_leasehold.shard_sources.kinesis.options import KinesisOptions
from dagster_leasehold.shard_sources.kinesis.reader import KinesisReader
from dagster_leasehold.shard_sources.kinesis.source import KinesisStream
from dagster_leasehold.shard_sources.source import ShardReader
from dagster_leasehold.shard_sources.source_kind import SourceKind, StreamPlace


def _open(options: KinesisOptions, place: StreamPlace) -> KinesisStream:
    """The stream; one that does not exist is reported by the first call that needs it."""
    return KinesisStream(options, options.stream or place.stream, place.folder)


def _reader(options: Mapping[str, str]) -> ShardReader:
    parsed = KinesisOptions.model_validate_json(options["options"])
    return KinesisReader(parsed, options["stream"], Path(options["folder"]))


KIND = SourceKind(
    KinesisOptions,
    _open,
    _reader,
    library="boto3",
    install="pip install 'dagster-leasehold[kinesis]'",
)
