"""Finds the declared streams of a deployment.

One module declares them: the module of a command's option, otherwise of the settings, otherwise of
the current folder's project. It has `ShardStream`s, also in lists and dictionaries, or Dagster's
definitions, which include the streams of YAML files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import UnknownStream, listed, shown
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, StreamName
from dagster_leasehold.orchestration.project_module import DEFINITIONS_MODULE, declaring_module
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.user_modules import (
    declared_twice,
    definitions_in,
    imported,
    loading,
    streams_in_module,
)
from dagster_leasehold.shard_sources.registry import StreamPlace, check_library, open_source
from dagster_leasehold.shard_sources.source import ShardSource


def named_source(
    kind: str, stream: str, /, *, settings: Settings | None = None, **options: Any
) -> ShardSource:
    """Return a stream's source by the name of its kind: `named_source("kafka", "visits", …)`.

    No request is sent. The client library is imported at first use, so hosts that only read leases
    and output do not need it.

    Args:
        kind: `local_log`, `kafka`, `kinesis`, `loghub`, or your own.
        stream: the stream's name. Unless an option gives another name, it is also the log's name in
            the service. A local log is in the folder `logs/STREAM` of the home.
        settings: None reads them from the environment and `leasehold.toml`.
        options: the options of that kind of source.

    Raises:
        UnknownSource: there is no source of this kind.
        InvalidSetting: an option is missing, unknown or of the wrong form.
        InvalidIdentifier: the stream's name is not valid.

    Examples:
        >>> type(named_source("local_log", "visits")).__name__
        'LocalLog'
    """
    name = StreamName(stream)
    settings = settings or load_settings()
    return open_source(kind, options, StreamPlace(name, settings.log_folder(name)))


@dataclass(frozen=True)
class DeclaredStreams:
    """The streams of one deployment, by name; their module is imported at first use.

    Attributes:
        module: the module that declares the streams; None means the module of the settings, or
            without one, the project's.
    """

    settings: Settings
    module: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all streams, in their order."""
        return tuple(self._by_name)

    def usable(self, name: str | None) -> ShardStream:
        """Return a stream whose source's library is installed. None means the only stream."""
        stream = self.find(name)
        check_library(stream.source)
        return stream

    def find(self, name: str | None) -> ShardStream:
        """Return a stream, even if its source's library is missing. None means the only stream.

        Raises:
            InvalidSetting: the module cannot be imported, or a stream is declared twice.
            UnknownStream: no stream has this name, or `name` is None and there are several.
        """
        names = self._existing_names
        if name is None and len(names) == 1:
            return self._by_name[names[0]]
        if name is None:
            raise UnknownStream(
                f"Give the stream's name. The declared streams are: {listed(names)}."
            )
        if name not in names:
            raise UnknownStream(
                f"Module {shown(self._module_name)} declares no stream {shown(name)}. Its streams "
                f"are: {listed(names)}."
            )
        return self._by_name[name]

    def all(self) -> tuple[ShardStream, ...]:
        """Return all streams, in their order."""
        return tuple(self.usable(name) for name in self._existing_names)

    def memberships_of(self, node: NodeName) -> dict[GroupKey, Node]:
        """Return the row of `node` for each stream's group."""
        streams = [self.find(name) for name in self._existing_names]
        return {stream.key: stream.node(node, address="") for stream in streams}

    @property
    def definitions_module(self) -> str:
        """The module of definitions that Dagster's processes load.

        It is the module of the option, or the module of the settings or the project if that has
        definitions. Otherwise it is this package's own, which builds all declared streams.
        """
        if self.module is not None:
            return self.module
        if self._module_name is None or not any(definitions_in(self._namespace)):
            return DEFINITIONS_MODULE
        return self._module_name

    @property
    def _existing_names(self) -> tuple[str, ...]:
        """The names of all streams."""
        if self.names:
            return self.names
        if self._module_name is None:
            raise UnknownStream(
                "No stream is declared here. Run the command in the folder of the module that "
                "declares your streams, give that module with -m, or create one with "
                "`leasehold init`."
            )
        raise UnknownStream(
            f"Module {shown(self._module_name)} declares no streams: use a module that has a "
            "ShardStream, or definitions from build_definitions or a component."
        )

    @cached_property
    def _module_name(self) -> str | None:
        return self.module or self.settings.module or declaring_module()

    @cached_property
    def _namespace(self) -> Mapping[str, object]:
        if self._module_name is None:
            return {}
        with loading(self._module_name, self.settings):
            return vars(imported(self._module_name, self.settings.home))

    @cached_property
    def _by_name(self) -> Mapping[str, ShardStream]:
        if self._module_name is None:
            return {}
        namespace = self._namespace
        with loading(self._module_name, self.settings):
            streams = [*streams_in_module(namespace, self.settings)]
        by_name: dict[str, ShardStream] = {}
        for stream in streams:
            if by_name.setdefault(stream.name, stream) is not stream:
                raise declared_twice(stream.name, f"in the module {shown(self._module_name)}")
        return by_name
