"""The user's modules in a Python worker that outlives the jobs which imported them."""

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


def is_installed(place: str) -> bool:
    """Return True if a file or folder belongs to this Python's installation."""
    return any(Path(place).is_relative_to(folder) for folder in _installation())


@cache
def _installation() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()]
    return tuple(dict.fromkeys(Path(folder) for folder in folders))


class UsersModules:
    """A finder that notes which of the user's modules are imported, and forgets them when told.

    It stands before all others on `sys.meta_path`, asks these, and looks at a file before it is
    read: an edit in between is taken for a change later, and none is missed. Compiled modules stay
    as they are, since Python loads them once; so do Leasehold's.
    """

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, State]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the finding of the other finders."""
        for finder in [*sys.meta_path]:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self._note(name, spec)
                return spec
        return None

    def _note(self, name: str, spec: ModuleSpec) -> None:
        # A package without a file holds modules as well, under names that others look up in it.
        file = spec.origin or ""
        places = [file] if file else [*(spec.submodule_search_locations or ())]
        if name.partition(".")[0] == OWN_PACKAGE or not places or is_installed(places[0]):
            return
        if not file or file.endswith(".py"):
            self._taken[name] = (file, _state(file))

    def forget_changed(self) -> None:
        """Forget all of them if the file of one has changed: others hold what they took from it."""
        taken = [*self._taken.items()]
        if all(_state(file) == state for _, (file, state) in taken):
            return
        for name, _ in taken:
            sys.modules.pop(name, None)
            self._taken.pop(name, None)
        importlib.invalidate_caches()


def _state(file: str) -> State:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
