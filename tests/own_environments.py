"""Environments of their own for programs that tests run beside this project, made once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from filelock import FileLock

from tests.database_server import cache_folder

INSTALL_TIMEOUT_S = 240


class PackagesMissing(Exception):
    """That packages cannot be installed here."""


@cache
def own_environment(name: str, packages: Sequence[str]) -> Path:
    """Return the folder with the programs of an environment; it is made now if it is not there.

    Raises:
        PackagesMissing: they cannot be installed.
    """
    folder = cache_folder(name)
    done = folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            try:
                _run(sys.executable, "-m", "venv", "--clear", str(folder))
                _run(str(folder / "bin/pip"), "install", "--quiet", *packages)
            except (OSError, subprocess.SubprocessError) as error:
                raise PackagesMissing(f"pip could not install {packages}: {error}") from None
            done.touch()
    return folder / "bin"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
