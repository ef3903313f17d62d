"""Environments of their own for programs that tests run beside this project, made once."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from filelock import FileLock

from tests.database_server import cache_folder

INSTALL_TIMEOUT_S = 240
PROGRAM = """\
#!{python}
import sys
from {module} import {attr}
sys.exit({attr}())
"""
"""A program of a dependency, as pip writes it."""


class PackagesMissing(Exception):
    """That packages cannot be installed here."""


def installed_wheel(folder: Path, wheel: Path) -> Path:
    """Install a wheel into a new environment, and return the folder with its programs.

    It finds the dependencies of the tests' own environment and has their programs, but it does not
    find this checkout.
    """
    python = folder / "bin/python"
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    # A line of a .pth file adds a folder without reading the .pth files in it, so this checkout in
    # the tests' environment is not added.
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    _run(*pip, "--no-deps", "--no-index", str(wheel))
    for program in entry_points(group="console_scripts"):
        script = folder / "bin" / program.name
        if not script.exists():
            script.write_text(
                PROGRAM.format(python=python, module=program.module, attr=program.attr)
            )
            script.chmod(0o755)
    return folder / "bin"


def built_wheel(folder: Path, sources: Path) -> Path:
    """Build the wheel of a project into a folder, without looking anything up."""
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    _run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(folder), str(sources))
    [built] = folder.glob("*.whl")
    return built


@cache
def own_environment(name: str, packages: Sequence[str]) -> Path:
    """Return the folder with the programs of an environment; it is made now if it is not there.

    Raises:
        PackagesMissing: they cannot be installed.
    """

    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(str(folder / "bin/pip"), "install", "--quiet", *packages)

    return _installed(name, packages, install) / "bin"


@cache
def own_packages(name: str, packages: Sequence[str]) -> Path:
    """Return a folder with packages alone, to come before the tests' own on a path; made once.

    Raises:
        PackagesMissing: they cannot be installed.
    """

    def install(folder: Path) -> None:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile")
        _run(*pip, "--upgrade", "--target", str(folder), *packages)

    return _installed(name, packages, install)


def _installed(name: str, packages: Sequence[str], install: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; it is filled now if no other process has done it."""
    folder = cache_folder(name)
    done = folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            try:
                install(folder)
            except (OSError, subprocess.SubprocessError) as error:
                raise PackagesMissing(f"pip could not install {packages}: {error}") from None
            done.touch()
    return folder


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
