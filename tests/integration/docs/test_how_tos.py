"""The commands of how-to pages, one after the other, on a home in the state that the page is about.

Real log, store and output; the sweeps of runs happen in this process, without Spark.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from lease_store import open_store
from orchestration.command_line import main
from orchestration.settings import PREFIX
from tests.unit.docs.test_docs import DOCS, fences
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

Said = Callable[[str], str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ConsumedHome]:
    """Four shards of ten records each, read in batches of four."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_HOME", str(tmp_path / "home"))
    home = ConsumedHome(tmp_path / "home", shards=4)
    home.append(10)
    home.consume("run-1")
    yield home
    home.store.close()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def command(line: str) -> str:
        assert main(shlex.split(line)) == 0, line
        return capsys.readouterr().out

    return command


def commands(page: str) -> list[str]:
    """What the page has its reader type, without the program's name."""
    blocks = "".join(fences(DOCS / "how-to" / page, "console"))
    return [line.removeprefix("$ leasehold ") for line in blocks.splitlines() if line[:1] == "$"]


def test_a_stuck_shard(home: ConsumedHome, said: Said) -> None:
    """Records of shard 3 are gone unread, so that its runs fail; then its node has left, too."""
    status, plan, journal, gaps, quarantine, force = commands("stuck-shard.md")
    home.append(5)
    home.log.retain("3", "15")
    home.consume("run-2")
    assert "already_alloc" in said(status)
    assert "10" in said(gaps)
    assert "held [10, 15)" in " ".join(said(journal).split())
    assert said(quarantine)
    home.store.leave(KEY, home.store.pulse(KEY).nodes[0].name, "a-1")
    assert "not_alloc" in said(status)
    assert "3 is left: no live node takes runs" in said(plan)
    said(force.replace(" 18000 ", " 15 "))
    assert home.store.snapshot(KEY).shards[3].check_point == "15"
    assert "are damaged" in " ".join(said(journal).split())


def test_an_upgrade(home: ConsumedHome, said: Said) -> None:
    drain, upgrade, verify, resume = commands("upgrading.md")
    assert said(drain)
    assert home.store.pulse(KEY).group.paused
    assert "has the schema of this release" in said(upgrade)
    assert "no violations" in said(verify)
    assert said(resume)
    assert not home.store.pulse(KEY).group.paused
    assert open_store(home.settings.store_url).groups()
