"""The work of a deployment costs the same with ten times as many batches.

Goal: no statement reads rows that it does not need. Method: the work is counted, not timed, on a
store of 400 batches and on one of 4,000, with as many entries in the journal: the instructions of
SQLite's machine, the rows that MariaDB and MySQL read, and the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.reopening import Reopening
from dagster_leasehold.lease_store.rules.verification import audit
from dagster_leasehold.lease_store.sql_store import SqlStore
from tests.aged_store import INCARNATION, KEY, NODE, RECORDS, Age, Consumption, fill
from tests.conformance.published import Publisher
from tests.conformance.world import World
from tests.database_server import DatabaseServer

pytestmark = pytest.mark.long

SMALL, LARGE = (Age(batches, shards=8, step=timedelta(minutes=5)) for batches in (400, 4_000))
RATIO_MAX = 1.5
SLACK = 40
STATEMENTS_MORE = 5
"""An hour of another age lies in another number of slices of time."""
INSTRUCTIONS = 10

Work = Callable[[], object]


@dataclass
class Aged:
    """An old store, and a count of the work on it."""

    age: Age
    store: SqlStore
    server: DatabaseServer | None
    done: int = 0
    statements: int = 0
    quiet: int = field(default=0, init=False)

    def listen(self) -> None:
        """Count from the next connection on."""
        engine = self.store._transactions.engine

        def connected(connection: Any, _record: object) -> None:
            def instructions() -> None:
                self.done += INSTRUCTIONS

            connection.set_progress_handler(instructions, INSTRUCTIONS)

        def sent(*_: object) -> None:
            self.statements += 1

        if self.server is None:
            event.listen(engine, "connect", connected)
        event.listen(engine, "before_cursor_execute", sent)
        if self.server is not None:
            self.quiet = -self._read() + self._read()

    def _read(self) -> int:
        if self.server is None:
            return self.done
        rows = self.server.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in rows)

    def cost(self, work: Work) -> tuple[int, int]:
        """The statements of some work, and the work of the database for them."""
        work()  # reads once per process or connection do not count here
        statements, before = self.statements, self._read()
        work()
        done = self._read() - before - self.quiet
        return self.statements - statements, done


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ],
)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Aged]]:
    stores: list[Aged] = []
    for age in (SMALL, LARGE):
        server: DatabaseServer | None = None
        url = f"sqlite:///{tmp_path_factory.mktemp('aged')}/leases.db"
        if request.param != "sqlite":
            server = request.getfixturevalue(request.param)
            assert server is not None
            url = server.create_database(f"aged_{age.batches}")
        fill(url, age)
        aged = Aged(age, open_store(url), server)
        aged.listen()
        stores.append(aged)
    yield stores
    for aged in stores:
        aged.store.close()


def work_of(aged: Aged) -> dict[str, Work]:
    """The operations that a deployment calls all the time, and those of commands."""
    store, age = aged.store, aged.age
    run = Consumption.begin(store, age)
    shard = age.names[0]
    rebalancer = Rebalancer(
        store,
        KEY,
        serves=(NODE,),
        timing=Timing(),
        observer="test",
        incarnation_of=lambda _: INCARNATION,
    )
    other = age.names[-1]

    def open_and_close() -> None:
        store.close_tenure(run.tenures[shard], reason="test")
        opened = store.open_tenure(KEY, shard, NODE, "again")
        run.tenures[shard] = opened.tenure  # type: ignore[union-attr]

    def force_back() -> None:
        batch = next(store.each_batch(KEY, other, newest_first=True))
        store.force_checkpoint(
            KEY, other, batch.start, observer="test", reason="test", reopen=Reopening.REFUSE
        )

    publisher = Publisher(World(store, KEY, {NODE: INCARNATION}), NODE)
    publisher.start()

    def publish() -> None:
        run.commit()
        publisher.publish()

    return {
        "beat": lambda: store.beat(KEY, NODE, INCARNATION),
        "tick": rebalancer.tick,
        "open and close": open_and_close,
        "commit": run.commit,
        "publish": publish,
        "publish nothing": lambda: (store.publication(KEY), store.unpublished(KEY)),
        "waiting output": lambda: store.publication_lag(KEY),
        "journal": lambda: store.journal(KEY, limit=20, newest=True),
        "journal of a shard": lambda: store.journal(KEY, shard=shard, limit=20, newest=True),
        "heads": lambda: store.heads(KEY),
        "totals": lambda: store.totals(KEY),
        "throughput": lambda: store.throughput(KEY),
        "draining": lambda: store.draining(KEY),
        "events": lambda: store.pending_events(KEY, run="nobody"),
        "waiting hooks": lambda: store.waiting_events(KEY, EventKind.HOOK),
        "gaps": lambda: store.gaps(KEY, acknowledged=False),
        "gap counts": lambda: store.gap_counts(KEY),
        "newest batches": lambda: next(store.each_batch(KEY, shard, newest_first=True)),
        "force a checkpoint": force_back,
    }


def test_costs_do_not_grow_with_the_age_of_the_store(pair: list[Aged]) -> None:
    small, large = (
        {name: aged.cost(work) for name, work in work_of(aged).items()} for aged in pair
    )
    grown = {
        name: (small[name], large[name])
        for name in small
        if large[name][0] > small[name][0] + STATEMENTS_MORE
        or large[name][1] > small[name][1] * RATIO_MAX + SLACK
    }
    assert grown == {}


def test_the_counter_notices_a_cost_that_grows(pair: list[Aged]) -> None:
    """The test before is only valid if reading everything is expensive."""
    small, large = (aged.cost(lambda aged=aged: aged.store.batches(KEY)) for aged in pair)
    assert large[1] > small[1] * 5


def test_verify_finds_no_violation_in_an_old_history(pair: list[Aged]) -> None:
    """Goal: the other cases may rely on rows as the verbs would have written them."""
    for aged in pair:
        report = audit(aged.store, KEY)
        assert report.violations == ()
        assert report.batches >= aged.age.batches - RECORDS
