"""The streams of a deployment, wherever they are declared: the one way to look them up.

`leasehold.toml` holds streams in their simplest form. All others are in a module: the one that an
option of a command names, or the settings, or else that of the current folder's project. It holds
them as `ShardStream`s, by themselves or in lists, or within Dagster's definitions, where those that
are declared in YAML are found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, cast

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import (
    InvalidSetting,
    SourceLibraryMissing,
    UnknownStream,
    shown,
)
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, StreamName
from dagster_leasehold.orchestration.presentation import listed
from dagster_leasehold.orchestration.project_module import DEFINITIONS_MODULE, declaring_module
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.stream_settings import StreamSettings
from dagster_leasehold.orchestration.user_modules import (
    declared_twice,
    definitions_in,
    imported,
    loading,
    streams_in_module,
    transform_of,
)
from dagster_leasehold.shard_sources.registry import StreamPlace, open_source
from dagster_leasehold.shard_sources.source import Limits, ShardSource


def declared_stream(name: str | None = None, settings: Settings | None = None) -> ShardStream:
    """Return the stream that `leasehold.toml` or the project's module declares by this name.

    Args:
        name: of the stream; None means the only one.
        settings: of the deployment; None reads them from the environment and `leasehold.toml`.

    Raises:
        InvalidSetting: the module cannot be imported, a stream is declared twice, or its transform
            is not found or not callable.
        UnknownStream: no stream of this name is declared, or None was given and there are several
            or none.
        SourceLibraryMissing: the client library of the stream's source is not installed.
    """
    return DeclaredStreams(settings or load_settings()).opened(name)


@dataclass(frozen=True)
class DeclaredStreams:
    """The streams of one deployment, by name; the module is imported at the first look.

    Attributes:
        settings: of the deployment.
        module: declares the streams in place of the settings; None takes those of the settings
            and of the module that they name, and if they do neither, of the project's module.
    """

    settings: Settings
    module: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all streams, in their order.

        Raises:
            InvalidSetting: the module cannot be imported, or a stream is declared twice.
        """
        return (*self._simple, *self._of_module)

    def opened(self, name: str | None) -> ShardStream:
        """Return a stream whose source can be used; None means the only stream.

        Raises:
            InvalidSetting: the module cannot be imported, a stream is declared twice, or its
                transform is not found or not callable.
            UnknownStream: no stream of the name, or None and there are several.
            SourceLibraryMissing: the client library of its source is not installed.
        """
        chosen = self._chosen(name)
        simple = self._simple.get(chosen)
        return self._of_module[chosen] if simple is None else stream_of(simple, self.settings)

    def described(self, name: str | None) -> ShardStream:
        """Return a stream for those who may not need its source; see `opened`.

        A source whose client library is missing says so when it is first used, since hosts that
        only look at leases and output do without the library.
        """
        try:
            return self.opened(name)
        except SourceLibraryMissing as error:
            simple = self._simple[self._chosen(name)]
            return stream_of(simple, self.settings, cast("ShardSource", _MissingSource(error)))

    def all(self) -> tuple[ShardStream, ...]:
        """Return all streams, in their order.

        Raises:
            InvalidSetting, SourceLibraryMissing: as `opened`.
            UnknownStream: there is none.
        """
        return tuple(self.opened(name) for name in self._some_names)

    def makes_raw_output(self, name: str) -> bool:
        """Return True if the settings declare the stream, and name no transform."""
        simple = self._simple.get(name)
        return simple is not None and simple.transform is None

    def memberships_of(self, node: NodeName) -> dict[GroupKey, Node]:
        """Return the row to register for `node` in the group of each stream.

        Raises:
            InvalidSetting: the module cannot be imported.
            UnknownStream: no stream is declared.
        """
        streams = [self.described(name) for name in self._some_names]
        return {stream.key: stream.node(node, address="") for stream in streams}

    @property
    def definitions_module(self) -> str:
        """The module of definitions that Dagster's processes load.

        It is the one that an option names, or that of the settings or the project if it has
        definitions of its own; otherwise the package's, which builds those of all declared streams.

        Raises:
            InvalidSetting: the module cannot be imported, or Dagster would load its definitions
                without the streams of the settings.
        """
        if self.module is not None:
            return self.module
        if self._named is None or not any(definitions_in(self._namespace)):
            return DEFINITIONS_MODULE
        if self._simple:
            raise InvalidSetting(
                f"The module {shown(self._named)} has definitions of its own, which are without "
                f"the streams that leasehold.toml declares ({listed(self._simple)}): declare them "
                "in the module as well, or not at all."
            )
        return self._named

    @property
    def _some_names(self) -> tuple[str, ...]:
        """The names of all streams.

        Raises:
            InvalidSetting: the module cannot be imported, or a stream is declared twice.
            UnknownStream: there are none.
        """
        if self.names:
            return self.names
        if self._named is None:
            raise UnknownStream(
                "No stream is declared here: run the command in the folder of the module that "
                "declares one, name that module with -m, or declare one in leasehold.toml."
            )
        raise UnknownStream(
            f"The module {shown(self._named)} declares no streams: name one that holds a "
            "ShardStream, or definitions that build_definitions or a component made."
        )

    @cached_property
    def _named(self) -> str | None:
        named = self.module or self.settings.module
        return named if named or self.settings.streams else declaring_module()

    @cached_property
    def _simple(self) -> Mapping[str, StreamSettings]:
        given = self.settings.streams if self.module is None else ()
        return {stream.name: stream for stream in given}

    @cached_property
    def _namespace(self) -> Mapping[str, object]:
        if self._named is None:
            return {}
        with loading(self._named, self.settings):
            return vars(imported(self._named))

    @cached_property
    def _of_module(self) -> Mapping[str, ShardStream]:
        if self._named is None:
            return {}
        namespace = self._namespace
        with loading(self._named, self.settings):
            streams = [*streams_in_module(namespace)]
        by_name: dict[str, ShardStream] = {}
        for stream in streams:
            if by_name.setdefault(stream.name, stream) is not stream:
                raise declared_twice(stream.name, f"in the module {shown(self._named)}")
            if stream.name in self._simple:
                places = f"in leasehold.toml and the module {shown(self._named)}"
                raise declared_twice(stream.name, places)
        return by_name

    def _chosen(self, name: str | None) -> str:
        names = self._some_names
        if name is None and len(names) == 1:
            return names[0]
        if name is None:
            raise UnknownStream(f"Name the stream; the declared streams are: {listed(names)}.")
        if name not in names:
            place = "" if self._named is None else f" in the module {shown(self._named)}"
            place += f"{' or' if place else ''} in leasehold.toml" if self._simple else ""
            raise UnknownStream(
                f"No stream {shown(name)} is declared{place}; the declared streams are: "
                f"{listed(names)}."
            )
        return name


def stream_of(
    declared: StreamSettings, settings: Settings, source: ShardSource | None = None
) -> ShardStream:
    """Return the stream that simple settings declare, with its source and its transform.

    A log or service that is not there yet is no error here: the step `shard_list` says so at
    every tick until it is, and the other streams go on.

    Raises:
        InvalidSetting: the transform is not found or not callable.
        SourceLibraryMissing: the source's client library is not installed.
    """
    stream = StreamName(declared.name)
    place = StreamPlace(stream, settings.log_folder(stream))
    # What both have under one name: the other settings are made into something else.
    same = {each.name for each in fields(ShardStream)} & type(declared).model_fields.keys()
    arguments: dict[str, Any] = {name: getattr(declared, name) for name in same}
    arguments |= {
        "source": source or open_source(declared.source, declared.source_options, place),
        "transform": transform_of(declared.name, declared.transform),
        "nodes": declared.node_settings,
        "limits": Limits(declared.batch_records_max, declared.batch_bytes_max),
        "table": declared.table_settings,
    }
    return ShardStream(**arguments)


class _MissingSource:
    """Stands for a source whose client library is missing: every use of it raises the error."""

    def __init__(self, error: SourceLibraryMissing) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error
