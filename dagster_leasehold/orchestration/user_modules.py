"""Imports modules of the user, and finds streams, definitions and other objects in them."""

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
"""The modules that are being loaded. A module that finds its own streams would recurse forever."""


def function_at(role: str, path: str, home: Path) -> Any:
    """Return the function that a declaration names as `module.function`.

    The error message begins with `role`.
    """
    function = object_at(role, path, home)
    if not callable(function):
        raise InvalidSetting(
            f"{role}, {shown(path)}, is not callable: use a function, given as module.function."
        )
    return function


def object_at(role: str, path: str, home: Path) -> object:
    """Return the object that a declaration names as `module.name`.

    The error message begins with `role`.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise InvalidSetting(f"{role} is {shown(path)}: give it as module.name.")
    try:
        return getattr(imported(module, home), name)
    except AttributeError:
        raise InvalidSetting(
            f"{role}, {shown(path)}, does not exist: module {shown(module)} has no {shown(name)}."
        ) from None


def streams_in_module(namespace: Mapping[str, Any], settings: Settings) -> Iterator[ShardStream]:
    """Yield the streams of a module's definitions; without definitions, its top-level streams.

    With definitions, top-level streams are ignored, since they can be intermediate values.

    Raises:
        InvalidSetting: the definitions describe another deployment than `settings`.
    """
    definitions = [*definitions_in(namespace)]
    if definitions:
        from dagster_leasehold.orchestration.build import streams_in
        from dagster_leasehold.orchestration.resources import require_same_deployment

        for each in definitions:
            result: Any = each() if callable(each) else each
            require_same_deployment(result, settings)
            yield from streams_in(result)
        return
    for value in namespace.values():
        values: Iterable[object] = (value,)
        if isinstance(value, dict):
            values = value.values()
        elif isinstance(value, list):
            values = value
        elif isinstance(value, tuple):
            # Some of Dagster's tuples do not support `iter`.
            values = tuple.__iter__(value)
        yield from (each for each in values if isinstance(each, ShardStream))


def definitions_in(namespace: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a module's definitions, and its functions under `@dg.definitions`."""
    if "dagster" not in sys.modules:
        return
    import dagster as dg
    from dagster.components.definitions import LazyDefinitions

    kinds = (dg.Definitions, LazyDefinitions)
    # An object can have two names in the module.
    values = {id(value): value for value in namespace.values()}
    yield from (each for each in values.values() if isinstance(each, kinds))


def imported(module: str, home: Path) -> ModuleType:
    """Import a module as Dagster would from the project's folder, or from the home."""
    sys.path[:0] = [each for each in map(str, import_folders(home)) if each not in sys.path]
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(
            f"Module {shown(module)} cannot be imported ({_reason(error)}): give its name as in an "
            "import statement, and run the command in the folder that contains it."
        ) from error


@contextmanager
def loading(module: str, settings: Settings) -> Generator[None]:
    """Prepare the process for loading a module within the block.

    The environment has the caller's `home` and `agents`, and the project's folder is the current
    folder, so that the module's relative paths start there.
    """
    if module in _LOADING:
        raise InvalidSetting(
            f"Module {shown(module)} looks up a declared stream while it is being loaded: import "
            "the stream from its module instead."
        )
    variables = {
        f"{PREFIX}HOME": str(settings.home.absolute()),
        f"{PREFIX}AGENTS": str(settings.agents).lower(),
    }
    old_values = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    _LOADING.add(module)
    first = len(_built_streams())
    try:
        with chdir(project_folder()):
            yield
    except Exception as error:
        names = [stream.name for stream in _built_streams()[first:]]
        for name in names:
            # Definitions of the same stream cannot be merged, and Dagster's error does not name it.
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
        for name, value in old_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _built_streams() -> Sequence[ShardStream]:
    """Return the streams whose definitions this process has built, without importing Dagster."""
    return getattr(sys.modules.get("dagster_leasehold.orchestration.build"), "BUILT", ())


def declared_twice(name: str, places: str) -> InvalidSetting:
    """Return the error of a stream that is declared twice."""
    return InvalidSetting(
        f"Stream {shown(name)} is declared twice {places}: remove one of the declarations."
    )


def _reason(error: BaseException) -> str:
    """Return the first `LeaseholdError` of an error and its causes, or the error, as one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, LeaseholdError):
            return str(cause).rstrip(".")
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {one_line(str(error))}"
