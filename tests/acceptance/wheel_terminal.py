"""A terminal in an environment with only the wheel of this project.

The wheel replaces the `pip install` of the pages: it is installed without an index, beside the
dependencies of the tests' environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.acceptance.leasehold_process import environment
from tests.own_environments import built_wheel, installed_wheel
from tests.unit.docs.test_docs import ROOT


@dataclass(frozen=True)
class Terminal:
    """A shell in a folder, in whose environment the wheel is installed.

    Attributes:
        programs: the folder of the environment's programs.
        folder: where commands are typed.
        exported: more variables.
    """

    programs: Path
    folder: Path
    exported: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
        own = {"PATH": path, "PYTHONPATH": "", "VIRTUAL_ENV": str(self.programs.parent)}
        return own | {"DAGSTER_DISABLE_TELEMETRY": "yes"} | self.exported

    def type(self, command: str, *, code: int = 0, timeout_s: float = 120) -> str:
        """Run a command to its end; return its output, with the errors of a failing one."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment() | self.variables,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    def rows(self, command: str) -> list[dict[str, object]]:
        """Return the lines that a command prints, as JSON."""
        return [json.loads(line) for line in self.type(command).splitlines()]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first-hour")
    return installed_wheel(folder / "venv", built_wheel(folder, ROOT))


@pytest.fixture
def terminal(programs: Path, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Terminal(programs, folder)
