"""Streams that a user's own module declares, for commands that need their transform."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.errors import InvalidSetting, UnknownStream, one_line, shown

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream

HOME_VARIABLE = "LEASEHOLD_HOME"


def stream_of_module(module: str, name: str | None, home: Path) -> ShardStream:
    """The stream that a module holds under any name, alone or in a list, tuple or dictionary.

    The operator names the module on the command line; it is imported as Dagster would import it,
    and finds the same `home` as the command when it loads the settings.

    Raises:
        InvalidSetting: the module cannot be imported.
        UnknownStream: it holds no stream of this name, or None was given and it holds several.
    """
    found = {stream.name: stream for stream in _streams_in(module, home)}
    known = ", ".join(sorted(found)) or "none"
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name is None:
        raise UnknownStream(f"Say which stream; those that module {module} holds are: {known}.")
    if name not in found:
        raise UnknownStream(
            f"Module {module} holds no stream {shown(name)}; those that it holds are: {known}."
        )
    return found[name]


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
