"""Reloads the user's modules in Python workers that outlive a job.

`worker_daemon` calls it, and `shipped_code` uses it to find modules outside Python's installation.
"""

from __future__ import annotations

import importlib
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

OWN_PACKAGE = __name__.partition(".")[0]
State = tuple[int, int] | None


def is_installed(path: str) -> bool:
    """Return True if a file or folder belongs to this Python's installation."""
    return any(Path(path).is_relative_to(folder) for folder in _installation())


@cache
def _installation() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()]
    return tuple(dict.fromkeys(Path(folder) for folder in folders))


class UsersModules:
    """An import finder that records the user's modules, to unload them after an edit.

    It is first on `sys.meta_path`, and delegates to the other finders. It records the state of a
    file before Python reads it, so no later edit is missed. Leasehold's modules are not recorded,
    and neither are compiled modules, which Python loads only once.
    """

    def __init__(self) -> None:
        self._states: dict[str, tuple[str, State]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the first spec that another finder returns, and record the module."""
        for finder in [*sys.meta_path]:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._record(name, spec)
                return spec
        return None

    def _record(self, name: str, spec: ModuleSpec) -> None:
        # A namespace package has no file. It is recorded as well, because its modules are its
        # attributes.
        file = spec.origin or ""
        paths = [file] if file else [*(spec.submodule_search_locations or ())]
        if name.partition(".")[0] == OWN_PACKAGE or not paths or is_installed(paths[0]):
            return
        if not file or file.endswith(".py"):
            self._states[name] = (file, _state(file))

    def unload_changed(self) -> None:
        """Unload all recorded modules if the file of one changed.

        The other modules hold objects that they imported from it.
        """
        states = [*self._states.items()]
        if all(_state(file) == state for _, (file, state) in states):
            return
        for name, _ in states:
            sys.modules.pop(name, None)
            self._states.pop(name, None)
        importlib.invalidate_caches()


def _state(file: str) -> State:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
