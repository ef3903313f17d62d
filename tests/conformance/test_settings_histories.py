"""Random histories of settings of nodes: modulo settings that change, and bootstraps.

As in `test_histories`, the model and a database play the same history. A node whose settings the
group refuses leaves, as its deployment makes it do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_leasehold.lease_store.errors import AssignmentConflict
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.lease_store.store import LeaseStore
from tests.conformance.conftest import on_databases
from tests.conformance.test_histories import NODES, Player, assert_like_the_model, played

pytestmark = pytest.mark.long

HISTORIES = range(70, 74)  # chosen so that together they reach everything


class SettingsPlayer(Player):
    """Plays one history of settings."""

    def _verbs(self) -> list[Callable[[], Any]]:
        often = [self.claim, self.open, self.intend, self.commit, self.resize, self.bootstrap]
        seldom = [
            self.sync, self.mode, self.begin, self.complete, self.close, self.force, self.evict,
            self.finish,
        ]  # fmt: skip
        return often * 3 + seldom

    def mode(self) -> Any:
        group = self.store.pulse(self.key).group
        chosen = self.random.choice((AssignmentMode.BALANCED, AssignmentMode.MODULO))
        return self.store.update_group(replace(group, assignment=chosen), observer="ops")

    def resize(self) -> Any:
        node = self._node()
        number, count = NODES.index(node), self.random.choice((3, 3, 3, 4))
        row = Node(node, 0, self._incarnation(node), source_count=count, node_id=number)
        try:
            return self.store.register(self.key, row, observer="t")
        except AssignmentConflict as error:
            left = self.store.leave(self.key, node, row.incarnation)
            return (type(error).__name__, str(error), left)

    def bootstrap(self) -> Any:
        shard = self._shard("already_alloc")
        row = next((r for r in self.store.snapshot(self.key).shards if r.shard == shard), None)
        holder = row.consumer_owner if row is not None else None
        node = holder if holder is not None and self.random.random() < 0.9 else self._node()
        open_run = row.consumer_run if row is not None else ""
        run = open_run if open_run and self.random.random() < 0.5 else "run-0"
        # Few cursors, so that one is often applied already: borders of batches, and none such.
        batches = self.store.batches(self.key, shard)[-2:]
        inside = [str(int(batch.end) - 1) for batch in batches[-1:]]
        cursor = self.random.choice(["0", *(batch.start for batch in batches), *inside])
        return self.store.bootstrap(self.key, shard, node, cursor, run=run)


@on_databases
@pytest.mark.parametrize("seed", HISTORIES)
def test_a_database_answers_like_the_model(store: LeaseStore, seed: int) -> None:
    key = assert_like_the_model(store, SettingsPlayer, seed)
    assert verify(store, key) == []


def test_histories_reach_every_outcome() -> None:
    """The comparison is worth as much as the histories cover."""
    outcomes: set[tuple[str, ...]] = set()
    for seed in HISTORIES:
        for name, *answer in played(SettingsPlayer, seed)[2]:
            match answer:
                case [(str(error), _, left)]:
                    outcomes.add((name, error, type(left).__name__))
                case [outcome]:
                    outcomes.add((name, type(outcome).__name__))
                case _:
                    outcomes.add((name, answer[0]))
    assert outcomes >= {
        ("bootstrap", "Changed"),
        ("bootstrap", "Stale"),
        ("bootstrap", "CheckpointRefused"),
        ("bootstrap", "UnknownShard"),
        ("resize", "Registered"),
        ("resize", "NameTaken"),
        ("resize", "ModuloCountMismatch", "Changed"),
        ("resize", "ModuloCountMismatch", "Stale"),
        ("commit", "dict"),
    }
