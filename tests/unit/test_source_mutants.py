"""Mutants of single lines: each takes one rule out of the code, and a test has to fail by it."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_leasehold.assets.consuming.following import Following
from dagster_leasehold.assets.consuming.open_shards import OpenShards
from dagster_leasehold.assets.deployment import ensure_instance_address
from dagster_leasehold.assets.rewriting import compaction
from dagster_leasehold.orchestration.supervision.node_agent import NodeAgent
from tests.unit.assets.consuming import test_following
from tests.unit.assets.consumption_world import World
from tests.unit.assets.rewriting import test_compaction
from tests.unit.orchestration.supervision import test_node_agent

Test = Callable[[Path, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """Code without one of its rules.

    Attributes:
        name: the behaviour of the code without the rule.
        owner: the module or class of the function.
        function: its name.
        line: a line that occurs once in its source.
        change: the line that replaces it.
        test: the test that has to fail.
    """

    name: str
    owner: Any
    function: str
    line: str
    change: str
    test: Test

    def mutation(self) -> Any:
        """Return the function with the change."""
        original = getattr(self.owner, self.function)
        source = textwrap.dedent(inspect.getsource(original))
        assert source.count(self.line) == 1, "the source has changed: change the mutant, too"
        namespace: dict[str, Any] = {}
        code = "from __future__ import annotations\n" + source.replace(self.line, self.change)
        exec(compile(code, f"<{self.name}>", "exec"), original.__globals__, namespace)
        return namespace[self.function]


def _compacts(folder: Path, patch: pytest.MonkeyPatch) -> None:
    scene = test_compaction.Scene(folder)
    test_compaction.test_records_after_a_full_row_group_are_merged(scene, patch)


def _loses_its_lease(folder: Path, _: pytest.MonkeyPatch) -> None:
    scene = test_following.Scene(World(folder, records_max=1_000))
    test_following.test_a_waiting_run_reacts_within_a_second(scene, "loss")


def _commits_late(folder: Path, _: pytest.MonkeyPatch) -> None:
    scene = test_following.Scene(World(folder, records_max=1_000))
    test_following.test_a_record_that_arrives_during_a_slow_batch_is_due_from_the_check_before(
        scene
    )


def _leaves_while_the_store_is_away(folder: Path, patch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ensure_instance_address(instance)
        scene = test_node_agent.Scene(folder, instance, 20.0)
        test_node_agent.test_a_stopping_agent_waits_for_an_unavailable_store(scene, patch)


MUTANTS = [
    Mutant(
        "compaction drops what follows a full row group",
        compaction,
        "_concatenate",
        "records += rows.num_rows",
        "records, out.writer.write_table = records + rows.num_rows, lambda _: None",
        _compacts,
    ),
    Mutant(
        "a following run ignores a lost lease at its review",
        OpenShards,
        "review",
        "self.lose(open_)",
        "pass",
        _loses_its_lease,
    ),
    Mutant(
        "a transfer does not wait while the store is away",
        NodeAgent,
        "_transfer_pending",
        "return True",
        "return False",
        _leaves_while_the_store_is_away,
    ),
    Mutant(
        "a due time counts from the commit instead of the poll",
        Following,
        "record_sweep",
        "and self._at_head(open_, batch, poll, limits)\n"
        "        ):\n"
        "            self._due.mark_read(shard, poll.at_s)",
        "and self._at_head(open_, batch, poll, limits)\n"
        "        ):\n"
        "            self._due.mark_read(shard, self._clock())",
        _commits_late,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_each_mutant_is_found_by_its_test(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("sound", "mutated")]
    for folder in folders:
        folder.mkdir()
    mutant.test(folders[0], monkeypatch)
    monkeypatch.setattr(mutant.owner, mutant.function, mutant.mutation())
    with pytest.raises(AssertionError):
        mutant.test(folders[1], monkeypatch)
