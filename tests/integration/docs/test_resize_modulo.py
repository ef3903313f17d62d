"""The settings of docs/how-to/nodes.md for a modulo group, in a real instance."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.command_line import main
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import SETTINGS_FILE, load_settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.environment import forget_settings
from tests.ticks import tick
from tests.unit.docs.test_docs import fences, section

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/nodes.md"
HEADING = "Resize a modulo group"
KEY = GroupKey.parse("default", "visits")


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    forget_settings(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".leasehold").mkdir()
    LocalLog.create(tmp_path / "visits-log", 6)
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def write(declaration: str, *nodes: str) -> None:
    """Write the module of a declaration, under a new name, and the settings."""
    module = f"streams_of_{len(nodes)}_nodes"
    Path(f"{module}.py").write_text(declaration, "utf-8")
    Path(SETTINGS_FILE).write_text(f'module = "{module}"\nnodes = {[*nodes]}\n', "utf-8")


class Deployment:
    """Code servers of one home, started again with each settings; the daemon's cursors stay."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance = instance
        self.cursor: str | None = None

    def start(self) -> None:
        loaded = load_settings()
        self.definitions = build_definitions(DeclaredStreams(loaded).all())
        self.store = open_store(loaded.store_url)

    def owners(self) -> dict[str, str | None]:
        """After two ticks."""
        for _ in range(2):
            result = tick(self.definitions, "visits_rebalance", self.instance, self.cursor)
            self.cursor = result.cursor
        return {str(row.shard): row.consumer_owner for row in self.store.snapshot(KEY).shards}


def test_the_steps_of_the_page_resize_a_modulo_group_and_change_its_mode(
    instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    two, three = fences(PAGE, "python", HEADING)
    status, plan, update = re.findall(r"^\$ leasehold (.*)$", section(PAGE, HEADING), re.M)

    def printed(command: str) -> str:
        assert main(shlex.split(command)) == 0
        return capsys.readouterr().out

    deployment = Deployment(instance)
    write(two, "east", "west")
    deployment.start()
    before = deployment.owners()
    assert before == {str(n): ("east", "west")[n % 2] for n in range(6)}

    # The file has changed, and the code server has not restarted: the commands list refused nodes.
    write(two + three, "east", "west", "north")
    for command in (status, plan):
        assert "north is refused: Node 'north' has source_count 3, but 'east' has 2" in printed(
            command
        )
    deployment.start()
    after = deployment.owners()
    assert after == {str(n): ("east", "west", "north")[n % 3] for n in range(6)}
    assert sum(before[shard] != after[shard] for shard in after) == 4, "two of three"
    for command in (status, plan):
        assert "refused" not in printed(command)

    assert "but the stream's declaration says modulo" in printed(update)
    assert "but the stream's declaration says modulo" in printed(status)
    assert verify(deployment.store, KEY) == []
