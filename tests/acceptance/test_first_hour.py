"""The commands of the README and the quick start, where only the wheel is installed."""

from __future__ import annotations

import itertools
import shlex
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.leasehold_process import Running, assert_nothing_runs, running
from tests.acceptance.wheel_terminal import Terminal, programs, terminal
from tests.unit.docs.test_docs import DOCS, ROOT, fences
from tests.unit.orchestration.terminal import Terminal as Screen

__all__ = ["programs", "terminal"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(900),
]
CONSUMED_S = 120.0
README, QUICK_START = ROOT / "README.md", DOCS / "quick-start.md"


def typed(page: Path) -> list[str]:
    return [line[2:] for block in fences(page, "console") for line in block.splitlines()]


def consumed(terminal: Terminal, dev: Running, read: str, count: int) -> None:
    """Wait until the deployment at work has committed a number of records, and end it."""
    dev.until(lambda: len(terminal.rows(read)) == count, CONSUMED_S)
    assert dev.end(signal.SIGINT) == 0
    assert "Traceback" not in dev.text


@pytest.mark.release
def test_four_commands_lead_from_the_installation_to_a_record(terminal: Terminal) -> None:
    """Goal: also after a restart, and after more records came."""
    install, append, dev, read = typed(README)[:4]
    assert install == "python -m pip install dagster-leasehold"
    assert append == "python visits.py"
    [code] = fences(README, "python")
    (terminal.folder / "visits.py").write_text(code)
    for time in (1, 2):
        terminal.type(append)
        with at_work(terminal, dev) as process:
            consumed(terminal, process, read, 4 * time)
        assert_nothing_runs(terminal.folder / ".leasehold")
    rows = terminal.rows(read)
    assert {(row["path"], row["status"]) for row in rows} == {("/cart", 200)}
    assert sorted(str(row["shard_id"]) for row in rows) == sorted("0123" * 2)
    assert "no violations" in terminal.type("leasehold verify visits")


def test_every_command_of_the_quick_start(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: `make` finds the wheel's environment in `.venv`, as if it had installed it."""
    prepare(terminal)
    commands = iter(typed(QUICK_START))
    for command in itertools.takewhile(lambda each: each != "make dev", commands):
        terminal.type(command, timeout_s=300)
    with at_work(terminal, "make dev"):
        assert next(commands) == ".venv/bin/leasehold top"
        monkeypatch.chdir(terminal.folder)
        monkeypatch.delenv("PYTHONPATH", raising=False)
        with Screen("top", program=[".venv/bin/leasehold"]) as screen:
            screen.waits_for("demo/default")
            screen.sends("q")
            assert screen.ended() == 0
        for command in itertools.takewhile(lambda each: each != "mkdir shop && cd shop", commands):
            terminal.type(command)
    (terminal.folder / "shop").mkdir()
    shop = Terminal(terminal.programs, terminal.folder / "shop")
    init, load, dev = commands
    shop.type(init)
    shop.type(load)
    with at_work(shop, dev) as process:
        consumed(shop, process, "leasehold cat visits", 8)
    assert {row["path"] for row in shop.rows("leasehold cat visits")} == {
        "/cart",
        "/search",
        "/pay",
    }
    for folder in (terminal.folder, shop.folder):
        assert_nothing_runs(folder / ".leasehold")


def prepare(terminal: Terminal) -> None:
    """Bring the files of a clone that the page needs, with fewer records, and logs to load."""
    (terminal.folder / "examples").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, terminal.folder / name)
    demo, many = (ROOT / "examples/demo.py").read_text(), "default=200_000"
    assert many in demo
    (terminal.folder / "examples/demo.py").write_text(demo.replace(many, "default=20_000"))
    (terminal.folder / ".venv").symlink_to(terminal.programs.parent)
    (terminal.programs.parent / ".stamp-run").touch()
    for name in ("a.log", "b.log", "more.log"):
        text = "".join(f"{name} {number}\n" for number in range(40))
        (terminal.folder / name).write_text(text)


@contextmanager
def at_work(terminal: Terminal, command: str) -> Generator[Running]:
    """A deployment that a command of the page starts; it is stopped at the end of the block."""
    with running(
        *shlex.split(command), folder=terminal.folder, program=(), **terminal.variables
    ) as process:
        process.until(lambda: "Open http://127.0.0.1:" in process.text, CONSUMED_S)
        yield process
