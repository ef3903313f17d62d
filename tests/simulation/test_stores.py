"""The same seeded histories on the model and on databases: every outcome has to be equal.

A seed and the answers of the store decide a simulation. If a database ever answers differently from
the model, the two histories and their ends differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import AssignmentMode
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.store import LeaseStore
from tests.simulation.protocol import Faults, Parts, SimulationConfig
from tests.simulation.protocol.consumption import consume
from tests.simulation.protocol.stage import KEY
from tests.simulation.protocol.world import World

if TYPE_CHECKING:
    from tests.mariadb import MariaDB

pytestmark = pytest.mark.long

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Make = Callable[[Callable[[], datetime]], LeaseStore]


class Steadfast(MemoryStore):
    """A model that loses no commits, as the databases here do not."""

    backup = None  # pyright: ignore[reportAssignmentType]


def history(make: Make, seed: int, steps: int) -> dict[str, Any]:
    """Return the content of a store after a seed's simulation, and the calls that it took.

    Some groups have nodes whose settings change: modulo counts, and bootstrap cursors.
    """
    mode = {3: AssignmentMode.MODULO, 7: AssignmentMode.PINNED}.get(seed % 10)
    config = SimulationConfig(
        mode=mode or AssignmentMode.BALANCED,
        nodes=2 + seed % 3,
        shards=3 + seed % 6,
        ordered=seed % 2 == 0,
        faults=Faults.SWARM,
        seed=seed,
        steps=steps,
    )
    world = World(config, seed, Parts(consume, store=make))
    world.run()
    assert world.stage.violations == []
    store = world.stage.store
    dateless = [replace(entry, at=EPOCH, sequence=0) for entry in store.journal(KEY)]
    return {
        "calls": world.stage.calls,
        "snapshot": store.snapshot(KEY),
        "journal": dateless,
        "batches": [replace(batch, committed_at=None) for batch in store.batches(KEY, state=None)],
        "events": [replace(event, sequence=0) for event in store.pending_events(KEY, limit=10**6)],
        "gaps": store.gaps(KEY),
    }


def assert_equal_histories(make: Make, seed: int, steps: int) -> None:
    expected, actual = history(Steadfast, seed, steps), history(make, seed, steps)
    for journal in (expected["journal"], actual["journal"]):
        assert len(journal) > 10
    for part, value in expected.items():
        assert actual[part] == value, f"seed {seed}: the {part} differ"


def test_settings_change_in_the_histories_of_modulo_and_pinned_groups() -> None:
    resized = history(Steadfast, 3, steps=250)
    assert {node.source_count for node in resized["snapshot"].nodes} != {2 + 3 % 3}
    assert "leave" in {entry.kind for entry in resized["journal"]}
    forced = [entry.reason for entry in history(Steadfast, 17, steps=250)["journal"]]
    assert any(reason.startswith("the settings of NODE-2 start it at") for reason in forced)


@pytest.mark.parametrize("seed", [0, 1, 3, 7])
def test_sqlite_answers_like_the_model(seed: int, tmp_path: Path) -> None:
    opened: list[LeaseStore] = []

    def make(clock: Callable[[], datetime]) -> LeaseStore:
        opened.append(open_store(f"sqlite:///{tmp_path / 'leases.db'}", clock=clock))
        return opened[-1]

    try:
        assert_equal_histories(make, seed, steps=250)
    finally:
        for store in opened:
            store.close()


_databases = count(1)


@pytest.mark.mariadb
@pytest.mark.parametrize("seed", [3, 4, 5, 7])
def test_mariadb_answers_like_the_model(seed: int, mariadb: MariaDB) -> None:
    opened: list[LeaseStore] = []
    database = f"simulated_{next(_databases)}"
    url = mariadb.create_database(database)

    def make(clock: Callable[[], datetime]) -> LeaseStore:
        opened.append(open_store(url, upgrade=True, clock=clock))
        return opened[-1]

    try:
        assert_equal_histories(make, seed, steps=250)
    finally:
        for store in opened:
            store.close()
        mariadb.drop_database(database)
