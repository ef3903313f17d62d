"""The decoding that a stream declares, as a transform of Arrow tables."""

from __future__ import annotations

from pathlib import Path

from dagster_leasehold.assets.arrow_transform import ERROR_COLUMN, ArrowTransform
from dagster_leasehold.assets.decode_settings import Decode
from dagster_leasehold.assets.decoding.formats import ColumnFormat
from dagster_leasehold.assets.decoding.records import RecordDecoding
from dagster_leasehold.assets.decoding.schema_registry import SchemaRegistry
from dagster_leasehold.assets.output.routed_rows import RoutedTransform
from dagster_leasehold.assets.shard_stream import ShardStream, Transform
from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.shard_sources.source import record_schema


def whole_transform(stream: ShardStream) -> Transform | ArrowTransform | None:
    """Return a stream's transform between its decoding and its routes; None if it has none.

    Raises:
        InvalidSetting: the file of a schema cannot be read.
    """
    transform = stream.transform
    if stream.decode is not None:
        assert isinstance(transform, ArrowTransform | None)
        transform = decoding(stream.decode, transform)
    if callable(stream.route):
        assert isinstance(transform, ArrowTransform | None)
        transform = ArrowTransform(RoutedTransform(stream.route, transform))
    return transform


def decoding(settings: Decode, transform: ArrowTransform | None = None) -> ArrowTransform:
    """Return a transform that decodes records, and then applies another one.

    Raises:
        InvalidSetting: the file of a schema cannot be read.
    """
    registry = SchemaRegistry(
        settings.registry, tuple(settings.client.items()), tuple(settings.secrets.items())
    )
    value = ColumnFormat(
        settings.format,
        registry if settings.registered else None,
        _schema(settings),
        settings.message,
        Path(settings.schema_file).name,
        settings.envelope is not None,
    )
    key = None
    if settings.key is not None:
        key = ColumnFormat(settings.key, None if settings.key == "text" else registry)
    reserved_names = [*record_schema().names, ERROR_COLUMN]
    return ArrowTransform(RecordDecoding(value, key, settings.prefix, reserved_names, transform))


def _schema(settings: Decode) -> bytes:
    if not settings.schema_file:
        return settings.schema.encode()
    path = Path(settings.schema_file).absolute()
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSetting(
            f"The schema file {path} cannot be read ({error.strerror}): set "
            "decode.schema to the path of its file."
        ) from None
