"""Set-up on machines that lack a program: one sentence, and no partial installation.

Method: the project's set-up files in an empty folder, and a search path with only the programs of a
bare machine, so that other programs are really missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BARE_PROGRAMS = (
    *("sh", "awk", "cat", "df", "dirname", "env", "find", "grep", "id", "make", "mkdir"),
    *("printf", "rm", "sleep", "tail", "touch", "true"),
)


class Machine:
    """A folder with the set-up files, and a separate search path."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.programs = folder / "bin"
        self.project.mkdir()
        self.programs.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md"):
            shutil.copy(ROOT / name, self.project / name)
        shutil.copytree(ROOT / "scripts", self.project / "scripts")
        for name in BARE_PROGRAMS:
            path = shutil.which(name)
            if path is not None:
                (self.programs / name).symlink_to(path)

    def program(self, name: str, text: str) -> None:
        """Put a program of our own on the path."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.project,
            env={"PATH": str(self.programs), "HOME": str(self.project), **variables},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )

    def failure(self, *command: str, **variables: str) -> str:
        """Return the one sentence that a failing command prints, without the output of make."""
        done = self.run(*command, **variables)
        assert done.returncode != 0, done.stdout
        lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
        assert len(lines) == 1, done.stderr
        return lines[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_help_lists_every_target_that_a_user_calls(machine: Machine) -> None:
    done = machine.run("make")
    assert done.returncode == 0
    listed = set(re.findall(r"^  ([a-z-]+) ", done.stdout, re.MULTILINE))
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed == set(phony[0].split())


def test_make_without_python_names_the_version_that_it_needs(machine: Machine) -> None:
    assert "Python 3.11, 3.12 or 3.13 is needed" in machine.failure("make", "demo")
    assert not (machine.project / ".venv").exists()


def test_make_refuses_an_older_python(machine: Machine) -> None:
    machine.program("python3", "exit 1")
    assert "Python 3.11, 3.12 or 3.13 is needed" in machine.failure("make", "install")


def test_make_without_the_venv_module_names_the_package(machine: Machine) -> None:
    """Method: a Python whose `import ensurepip` fails, as on a fresh Debian."""
    machine.program(
        "python3", f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"'
    )
    assert "python3-venv" in machine.failure("make", "install")


def test_make_detects_a_full_disk_before_pip_starts(machine: Machine) -> None:
    (machine.programs / "python3").symlink_to(sys.executable)
    machine.program("df", "printf 'head\\n/dev/x 1 1 1024000 1 /\\n'")
    assert "2500 MB of disk are needed here and 1000 MB are free" in machine.failure(
        "make", "install"
    )
    assert not (machine.project / ".venv").exists()


def test_an_unreachable_package_index_is_one_sentence_and_leaves_no_stamp(machine: Machine) -> None:
    (machine.programs / "python3").symlink_to(sys.executable)
    sentence = machine.failure(
        "make", "install", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(machine.project)
    )
    assert "pip ended with an error" in sentence
    assert ".venv/install.log" in sentence
    assert not (machine.project / ".venv" / ".stamp-run").exists()


def test_make_test_names_missing_servers_and_how_to_install_them(machine: Machine) -> None:
    """Method: no package manager and no browser are on the path."""
    assert re.search(
        r"Cannot run the tests: .* could not be installed; install it",
        machine.failure("sh", "scripts/test_tools.sh"),
    )
