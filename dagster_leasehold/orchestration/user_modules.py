"""Modules that settings and options name: their streams and definitions, and single objects."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.errors import InvalidSetting, LeaseholdError, one_line, shown
from dagster_leasehold.orchestration.project_module import import_folders, project_folder
from dagster_leasehold.orchestration.settings import PREFIX, Settings

_LOADING: set[str] = set()
"""The modules whose streams are being looked up; one that looks up its own would never end."""


def function_at(what: str, path: str, home: Path) -> Any:
    """Return the function that a declaration names as `module.function`.

    If there is none, the sentence of the error begins with `what`.

    Raises:
        InvalidSetting: it is not found or not callable.
    """
    function = object_at(what, path, home)
    if not callable(function):
        raise InvalidSetting(
            f"{what}, {shown(path)}, is not callable: name a function, as module.function."
        )
    return function


def object_at(what: str, path: str, home: Path) -> object:
    """Return the object that a declaration names as `module.name`.

    If there is none, the sentence of the error begins with `what`.

    Raises:
        InvalidSetting: there is no such module, or nothing of this name in it.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise InvalidSetting(f"{what} is {shown(path)}: name it as module.name.")
    try:
        return getattr(imported(module, home), name)
    except AttributeError:
        raise InvalidSetting(
            f"{what}, {shown(path)}, is not found: the module {shown(module)} has no {shown(name)}."
        ) from None


def streams_in_module(namespace: Mapping[str, Any], settings: Settings) -> Iterator[ShardStream]:
    """Yield the streams of a module: from its definitions, or else its names.

    Beside definitions, a stream that the module names can be a step on the way to one of theirs.

    Raises:
        InvalidSetting: the definitions are of another deployment than `settings`.
    """
    definitions = [*definitions_in(namespace)]
    if definitions:
        from dagster_leasehold.orchestration.build import streams_in
        from dagster_leasehold.orchestration.resources import refuse_another

        for each in definitions:
            result: Any = each() if callable(each) else each
            refuse_another(result, settings)
            yield from streams_in(result)
        return
    for value in namespace.values():
        values: Iterable[object] = (value,)
        if isinstance(value, dict):
            values = value.values()
        elif isinstance(value, list):
            values = value
        elif isinstance(value, tuple):
            # Dagster's own values are tuples that refuse to be iterated.
            values = tuple.__iter__(value)
        yield from (each for each in values if isinstance(each, ShardStream))


def definitions_in(namespace: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a module's definitions, and its functions that make some when Dagster loads them."""
    if "dagster" not in sys.modules:
        return
    import dagster as dg
    from dagster.components.definitions import LazyDefinitions

    kinds = (dg.Definitions, LazyDefinitions)
    # A value that has two names in the module is one.
    values = {id(value): value for value in namespace.values()}
    yield from (each for each in values.values() if isinstance(each, kinds))


def imported(module: str, home: Path) -> ModuleType:
    """Return a module, imported as Dagster would import it from the folder of this project.

    A home that has settings can hold the module that they name.

    Raises:
        InvalidSetting: it cannot be imported.
    """
    sys.path[:0] = [each for each in map(str, import_folders(home)) if each not in sys.path]
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(
            f"Module {shown(module)} cannot be imported ({_reason(error)}): name it as Python "
            "imports it, from the folder that holds it."
        ) from error


@contextmanager
def loading(module: str, settings: Settings) -> Generator[None]:
    """Give a module that is imported in the block the caller's home and kind of deployment.

    The module's paths are relative to the project, which is the current folder.

    Raises:
        InvalidSetting: the module looks up its own streams, or its definitions cannot be loaded.
    """
    if module in _LOADING:
        raise InvalidSetting(
            f"Module {shown(module)} looks up a declared stream while it is loaded itself: import "
            "the stream from the module that declares it."
        )
    own = {
        f"{PREFIX}HOME": str(settings.home.absolute()),
        f"{PREFIX}AGENTS": str(settings.agents).lower(),
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    _LOADING.add(module)
    built = len(_built())
    try:
        with chdir(project_folder()):
            yield
    except Exception as error:
        names = [stream.name for stream in _built()[built:]]
        for name in names:
            # Their definitions do not merge, and Dagster's error does not name the stream.
            if names.count(name) > 1:
                raise declared_twice(name, f"in the module {shown(module)}") from error
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(
            f"The definitions of module {shown(module)} cannot be loaded ({_reason(error)}): "
            "`dg check defs` shows where."
        ) from error
    finally:
        _LOADING.remove(module)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _built() -> Sequence[ShardStream]:
    """Return the streams whose definitions were built, without loading Dagster for it."""
    return getattr(sys.modules.get("dagster_leasehold.orchestration.build"), "BUILT", ())


def declared_twice(name: str, places: str) -> InvalidSetting:
    """Return the error of a stream that is declared twice."""
    return InvalidSetting(
        f"Stream {shown(name)} is declared twice {places}: leave one of the two away."
    )


def _reason(error: BaseException) -> str:
    """Return our own sentence where one is the cause of an error, else the error in a line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, LeaseholdError):
            return str(cause).rstrip(".")
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {one_line(str(error))}"
