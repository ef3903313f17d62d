"""Seeded incidents: publishers that die, freeze and race, beside consumption, force and compaction.

After each seed the table, as DuckDB reads it, has each committed record once.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.lease_store import failpoints
from dagster_leasehold.lease_store.errors import CheckpointRefused
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.failpoints import Failpoint
from tests.unit.assets.output.table.publishing_world import NODE, OTHER, Publishing
from tests.unit.assets.output.table.test_publisher import POINTS, Killed

SEEDS = 6
SEEDS_LONG = 1_000
STEPS = 10


class Incidents:
    """One seed: a stream, its publishers, and their incidents."""

    def __init__(self, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.publishing = Publishing(folder)
        self.world = self.publishing.world
        self.run = 0
        self.at: Failpoint | None = None
        self.incident: Any = None
        monkeypatch.setattr(failpoints, "reach", self.reach)

    def reach(self, reached: str) -> None:
        if self.at is not None and reached == self.at.label:
            self.at = None
            self.incident()

    def next_run(self) -> str:
        self.run += 1
        return f"run-{self.run}"

    def consume(self) -> None:
        for shard in self.world.ids:
            self.world.append(shard, self.random.randrange(4))
        self.world.sync()
        self.world.consume(self.next_run())

    def publish(self) -> None:
        self.at = None
        self.publishing.publish(self.random.choice((NODE, OTHER)))

    def die(self) -> None:
        """A publisher dies at a step; its node's next one takes the lock."""

        def killed() -> None:
            raise Killed

        self.at, self.incident = self.random.choice(POINTS), killed
        lock = self.publishing.lock(NODE)
        if not isinstance(lock, PublishLock):
            return
        try:
            self.publishing.publisher().publish(lock)
        except Killed:
            lock = self.publishing.lock(NODE)
            assert isinstance(lock, PublishLock)
        self.publishing.store.release_publish_lock(lock)

    def freeze(self) -> None:
        """A publisher stands at a step while its node's next one works, and continues then."""
        lock = self.publishing.lock(NODE)
        if not isinstance(lock, PublishLock):
            return
        self.at, self.incident = self.random.choice(POINTS), self._meanwhile
        self.publishing.publisher().publish(lock)
        self.publishing.store.release_publish_lock(lock)

    def _meanwhile(self) -> None:
        self.random.choice((self.consume, self.force, self.compact, lambda: None))()
        if self.random.random() < 0.7:
            lock = self.publishing.lock(NODE)
            assert isinstance(lock, PublishLock)
            self.publishing.publisher().publish(lock)
            self.publishing.store.release_publish_lock(lock)

    def force(self) -> None:
        shard = self.random.choice(self.world.ids)
        starts = [batch.start for batch in self.world.store.batches(self.world.key, shard)]
        # Within merged batches a checkpoint cannot be set.
        with suppress(CheckpointRefused):
            self.world.store.force_checkpoint(
                self.world.key,
                shard,
                self.random.choice(starts or ["0"]),
                observer="test",
                reason="test",
            )

    def compact(self) -> None:
        run = self.next_run()
        compactor = Compactor(
            store=self.world.store,
            key=self.world.key,
            output_root=output_place(self.world.output),
            run=run,
        )
        compactor.compact(self.world.ids)


def play(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    incidents = Incidents(folder, seed, monkeypatch)
    incidents.consume()
    for _ in range(STEPS):
        step = incidents.random.choice(
            (
                incidents.consume,
                incidents.publish,
                incidents.die,
                incidents.freeze,
                incidents.force,
                incidents.compact,
            )
        )
        step()
    incidents.consume()
    incidents.publish()
    publishing = incidents.publishing
    assert publishing.published() == publishing.committed(), f"seed {seed}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_record_is_in_the_table_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path, seed, monkeypatch)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.release) for n in range(100, SEEDS_LONG, 100))]
)
def test_many_seeds_break_no_promise(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + 100):
        with monkeypatch.context() as patched:
            play(tmp_path / str(seed), seed, patched)
