"""Sources by name, for settings and for the readers of Spark's workers.

A package adds a source by an entry point of the group `leasehold.sources`: its name is the source's
name in the settings, and its object is a `SourceKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dagster_leasehold.lease_store.errors import (
    InvalidSetting,
    SourceLibraryMissing,
    UnknownSource,
    plain_reason,
    shown,
    suggestion,
)
from dagster_leasehold.lease_store.identifiers import StreamName
from dagster_leasehold.shard_sources.source import ShardReader, ShardSource

if TYPE_CHECKING:
    from pydantic import BaseModel

ENTRY_POINT_GROUP = "leasehold.sources"
LOCAL_LOG = "local_log"
# Imported on use, because a deployment should not load the other sources.
_BUILT_IN = {
    "kafka": "dagster_leasehold.shard_sources.kafka.source",
    "kinesis": "dagster_leasehold.shard_sources.kinesis.source",
    LOCAL_LOG: "dagster_leasehold.shard_sources.local_log.log",
    "loghub": "dagster_leasehold.shard_sources.loghub.source",
}


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The stream that a source is opened for.

    Attributes:
        stream: its name, also the log's name in the service unless an option sets another.
        folder: the stream's folder in the home; it does not always exist.

    Examples:
        >>> str(StreamPlace(StreamName("visits"), Path("logs/visits")).folder)
        'logs/visits'
    """

    stream: StreamName
    folder: Path


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: its options, how to open it, and how Spark's workers read it.

    Attributes:
        options: the pydantic model of its options. It forbids unknown options, and an option
            names the environment variable of a secret instead of containing the secret.
        open: returns the source for valid options, without a request to the service.
        reader: returns the reader of `ShardSource.spark_options`.
        library: the top-level module of the client library, if one is needed.
        install: the command that installs the library.
    """

    options: type[BaseModel]
    open: Callable[[Any, StreamPlace], ShardSource]
    reader: Callable[[Mapping[str, str]], ShardReader]
    library: str = ""
    install: str = ""


def source_names() -> list[str]:
    """Return the names of all installed sources."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def source_kind(name: str) -> SourceKind:
    """Return the kind of source with this name; raise UnknownSource if it cannot be used."""
    if name in _BUILT_IN:
        return import_module(_BUILT_IN[name]).KIND
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            kind = point.load()
        except Exception as error:
            raise UnknownSource(
                f"The source {shown(name)} cannot be loaded from {point.value}: "
                f"{type(error).__name__}: {shown(error)}."
            ) from error
        if isinstance(kind, SourceKind):
            return kind
        raise UnknownSource(
            f"The entry point {point.value} of the source {shown(name)} is not a SourceKind."
        )
    raise UnknownSource(
        f"There is no source {shown(name)}: installed are {', '.join(source_names())}."
    )


def source_options(name: str, options: Mapping[str, Any]) -> BaseModel:
    """Return the checked options of a source.

    Raises:
        UnknownSource: the source is not installed.
        InvalidSetting: an option is missing, unknown or invalid; the message shows no values.
    """
    from pydantic import ValidationError

    model = source_kind(name).options
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    option = ".".join(str(part) for part in first["loc"])
    source = f"the source {shown(name)}"
    if first["type"] == "extra_forbidden":
        names = (field.alias or name for name, field in model.model_fields.items())
        raise InvalidSetting(
            f"{shown(option)} is not an option of {source}: {suggestion(option, names)}"
        )
    if first["type"] == "missing":
        raise InvalidSetting(f"The option {shown(option)} of {source} is missing.")
    subject = f"The option {shown(option)}" if option else "An option"
    raise InvalidSetting(f"{subject} of {source} is not valid: {plain_reason(first['msg'])}.")


def open_source(name: str, options: Mapping[str, Any], place: StreamPlace) -> ShardSource:
    """Return the source of a stream, without a request to the service.

    If the client library is missing, every use of the source raises SourceLibraryMissing.

    Raises:
        UnknownSource: the source is not installed.
        InvalidSetting: an option is missing, unknown or invalid.
    """
    kind, checked = source_kind(name), source_options(name, options)
    try:
        _require_library(name, kind)
    except SourceLibraryMissing as error:
        return cast("ShardSource", _MissingSource(error))
    return kind.open(checked, place)


def check_library(source: ShardSource) -> None:
    """Raise SourceLibraryMissing if the client library of a source is not installed."""
    if isinstance(source, _MissingSource):
        raise source.error


class _MissingSource:
    """A source without its client library: every use raises the error."""

    def __init__(self, error: SourceLibraryMissing) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


def reader_from_options(options: Mapping[str, str]) -> ShardReader:
    """Return the reader for options from `ShardSource.spark_options`.

    Raises:
        UnknownSource: the source is not installed, or a required option is missing.
        SourceLibraryMissing: the client library is not installed here.
    """
    name = options.get("source", "")
    try:
        return _reader_function(name)(options)
    except KeyError as missing:
        raise UnknownSource(f"The source {shown(name)} needs the option {missing}.") from None


def _reader_function(name: str) -> Callable[[Mapping[str, str]], ShardReader]:
    if name == LOCAL_LOG:
        from dagster_leasehold.shard_sources.local_log.reading import reader_of

        # Its other modules import pydantic, which workers of a cluster can lack.
        return reader_of
    try:
        kind = source_kind(name)
    except ModuleNotFoundError as error:
        raise SourceLibraryMissing(
            f"The source {shown(name)} needs the library {error.name}, which is not installed "
            "here: install it here and on Spark's workers."
        ) from error
    _require_library(name, kind)
    return kind.reader


def _require_library(name: str, kind: SourceKind) -> None:
    if kind.library and find_spec(kind.library) is None:
        raise SourceLibraryMissing(
            f"The source {shown(name)} needs the library {kind.library}, which is not installed "
            f"here: run `{kind.install}` here and on Spark's workers."
        )
