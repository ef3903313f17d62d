"""Modules that a user names: the streams that one declares, and the groups of its definitions."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import InvalidSetting, UnknownStream, one_line, shown
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.rules.node_settings import node_row
from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE, Settings

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream

HOME_VARIABLE = "LEASEHOLD_HOME"


def stream_of_module(module: str, name: str | None, home: Path) -> ShardStream:
    """Return the stream that a module holds by itself or in a list, tuple or dictionary.

    The operator names the module on the command line; it is imported as Dagster would import it,
    and finds the same `home` as the command when it loads the settings.

    Raises:
        InvalidSetting: the module cannot be imported.
        UnknownStream: it holds no stream of this name, or None was given and it holds several.
    """
    streams = {stream.name: stream for stream in _streams_in(module, home)}
    names = ", ".join(sorted(streams)) or "none"
    if name is None and len(streams) == 1:
        return next(iter(streams.values()))
    if name is None:
        raise UnknownStream(f"Name a stream; those that module {module} holds are: {names}.")
    if name not in streams:
        raise UnknownStream(
            f"Module {module} holds no stream {shown(name)}; those that it holds are: {names}."
        )
    return streams[name]


def _streams_in(module: str, home: Path) -> Iterator[ShardStream]:
    from dagster_leasehold.assets.shard_stream import ShardStream

    for value in vars(_imported(module, home)).values():
        held: Iterable[object] = (value,)
        if isinstance(value, dict):
            held = value.values()
        elif isinstance(value, list):
            held = value
        elif isinstance(value, tuple):
            # Dagster's own values are tuples that refuse to be iterated, its definitions too.
            held = tuple.__iter__(value)
        yield from (each for each in held if isinstance(each, ShardStream))


def _imported(module: str, home: Path) -> object:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    before = os.environ.get(HOME_VARIABLE)
    os.environ[HOME_VARIABLE] = str(home.absolute())
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(
            f"Module {shown(module)} cannot be imported ({type(error).__name__}: "
            f"{one_line(str(error))}): name it as Python imports it, from the folder that holds it."
        ) from error
    finally:
        if before is None:
            del os.environ[HOME_VARIABLE]
        else:
            os.environ[HOME_VARIABLE] = before


def memberships_of(node: NodeName, module: str, settings: Settings) -> dict[GroupKey, Node]:
    """Return the row to register for `node` in the group of each stream of a module.

    Raises:
        InvalidSetting: the module cannot be imported, or builds no definitions of streams.
    """
    if module == DEFINITIONS_MODULE:
        return {
            stream.key: node_row(node, stream.node_settings.get(node), address="")
            for stream in settings.streams
        }
    from dagster_leasehold.orchestration import build

    before = len(build.BUILT)
    try:
        importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(
            f"The module {shown(module)} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    rows = {stream.key: stream.node(node, address="") for stream in build.BUILT[before:]}
    if not rows:
        raise InvalidSetting(
            f"The module {shown(module)} has no definitions of streams: name one that calls "
            "build_definitions."
        )
    return rows
