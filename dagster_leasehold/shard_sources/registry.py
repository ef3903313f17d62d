"""Sources by name: in settings, and in the options that describe a reader to Spark's workers.

A user's own package adds a source with an entry point of the group `leasehold.sources`: the name
of the entry point is that of `source` in the settings, its object is a `SourceKind`.
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
# Named, not imported: a deployment pays for the source that it uses.
_BUILT_IN = {
    "kafka": "dagster_leasehold.shard_sources.kafka.source",
    "kinesis": "dagster_leasehold.shard_sources.kinesis.source",
    LOCAL_LOG: "dagster_leasehold.shard_sources.local_log.kind",
    "loghub": "dagster_leasehold.shard_sources.loghub.source",
}
_WHERE = "let Spark's workers have it, too"


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The stream that a source is opened for.

    Attributes:
        stream: its name; a source takes it for the name in the service where no option says
            otherwise.
        folder: a folder of the stream's own in the home; it may not exist yet.

    Examples:
        >>> str(StreamPlace(StreamName("visits"), Path("logs/visits")).folder)
        'logs/visits'
    """

    stream: StreamName
    folder: Path


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: its options, how it is opened, and how Spark's workers read it.

    Attributes:
        options: the pydantic model of its options. It forbids unknown ones, and none
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


def source_names() -> list[str]:
    """The names of all installed sources."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def source_kind(name: str) -> SourceKind:
    """Return the installed kind of source of this name.

    Raises:
        UnknownSource: there is none, or its package cannot be used.
    """
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
            f"The entry point {point.value} of the source {shown(name)} is no SourceKind."
        )
    raise UnknownSource(
        f"There is no source {shown(name)}: installed are {', '.join(source_names())}."
    )


def source_options(name: str, given: Mapping[str, Any]) -> BaseModel:
    """Return the options of a source, typed and checked.

    Raises:
        UnknownSource: there is no such source.
        InvalidSetting: an option is missing, unknown or of the wrong form; values are not shown.
    """
    from pydantic import ValidationError

    model = source_kind(name).options
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
    option = ".".join(str(part) for part in first["loc"])
    source = f"the source {shown(name)}"
    if first["type"] == "extra_forbidden":
        names = (field.alias or name for name, field in model.model_fields.items())
        raise InvalidSetting(
            f"{shown(option)} is no option of {source}: {suggestion(option, names)}"
        )
    if first["type"] == "missing":
        raise InvalidSetting(f"The option {shown(option)} of {source} is missing.")
    subject = f"The option {shown(option)}" if option else "An option"
    raise InvalidSetting(f"{subject} of {source} is not valid: {plain_reason(first['msg'])}.")


def open_source(name: str, options: Mapping[str, Any], place: StreamPlace) -> ShardSource:
    """Open the source of a stream; nothing is asked of its service yet.

    Where its client library is missing, every use of the source says so.

    Raises:
        UnknownSource: there is no such source.
        InvalidSetting: an option is missing, unknown or of the wrong form.
    """
    kind, checked = source_kind(name), source_options(name, options)
    try:
        _refuse_without_library(name, kind)
    except SourceLibraryMissing as error:
        return cast("ShardSource", _MissingSource(error))
    return kind.open(checked, place)


def check_library(source: ShardSource) -> None:
    """Check that a source can be used.

    Raises:
        SourceLibraryMissing: its client library is not installed.
    """
    if isinstance(source, _MissingSource):
        raise source.error


class _MissingSource:
    """Stands for a source whose client library is missing: every use of it raises the error."""

    def __init__(self, error: SourceLibraryMissing) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


def reader_from_options(options: Mapping[str, str]) -> ShardReader:
    """Build the reader that `ShardSource.spark_options` of its source describes.

    Raises:
        UnknownSource: no source of this name is installed, or an option that it needs is missing.
        SourceLibraryMissing: its client library is not installed here.
    """
    name = options.get("source", "")
    try:
        return _reader_function(name)(options)
    except KeyError as missing:
        raise UnknownSource(f"The source {shown(name)} needs the option {missing}.") from None


def _reader_function(name: str) -> Callable[[Mapping[str, str]], ShardReader]:
    if name == LOCAL_LOG:
        from dagster_leasehold.shard_sources.local_log.source import reader_of

        # Its kind has options made with pydantic, which a worker of a cluster can lack.
        return reader_of
    try:
        kind = source_kind(name)
    except ModuleNotFoundError as missing:
        raise SourceLibraryMissing(
            f"The source {shown(name)} needs the library {missing.name}, which is not installed "
            f"here: {_WHERE}."
        ) from missing
    _refuse_without_library(name, kind)
    return kind.reader


def _refuse_without_library(name: str, kind: SourceKind) -> None:
    if kind.library and find_spec(kind.library) is None:
        raise SourceLibraryMissing(
            f"The source {shown(name)} needs the library {kind.library}, which is not installed "
            f"here: run `{kind.install}`, and {_WHERE}."
        )
