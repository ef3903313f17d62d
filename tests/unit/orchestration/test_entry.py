"""The program `leasehold` under Ctrl-C, from its first import to the end of its process."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3] / "pyproject.toml"
INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
WHILE_IMPORTING = f"""
class Interrupting:
    def find_spec(self, name, *_):
        if name == {{module!r}}:
            {INTERRUPT}
sys.meta_path.insert(0, Interrupting())
"""
AT_EXIT = f"import atexit; atexit.register(lambda: {INTERRUPT})"


def run(preparation: str, entry: str) -> subprocess.CompletedProcess[str]:
    """Run `leasehold version` by its entry point in a fresh interpreter."""
    module, _, function = entry.partition(":")
    program = (
        f"import os, signal, sys\n{preparation}\n"
        f"sys.argv = ['leasehold', 'version']\nfrom {module} import {function} as main\n"
        "sys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def entry() -> str:
    return tomllib.loads(PROJECT.read_text())["project"]["scripts"]["leasehold"]


@pytest.mark.parametrize(
    ("preparation", "code", "errors"),
    [
        (WHILE_IMPORTING.format(module="typer"), -signal.SIGINT, ""),
        (WHILE_IMPORTING.format(module="importlib.metadata"), 130, "Interrupted.\n"),
        (AT_EXIT, -signal.SIGINT, ""),
        ("", 0, ""),
    ],
    ids=["while it is loaded", "in a command", "at its end", "not at all"],
)
def test_an_interrupt_prints_no_stack_trace(
    entry: str, preparation: str, code: int, errors: str
) -> None:
    done = run(preparation, entry)
    assert (done.returncode, done.stderr) == (code, errors)
