"""The cost of staying alive for one lease term: volume leases, and a lease per shard.

`python -m benchmarks.upkeep [--shards 10 1000 10000] [--nodes 3 10 100] [--json]` lets every node
of a settled group tick through one term (three beats) on a real SQLite store, and lets the same
nodes renew each of their shards' leases three times, with one conditional statement each and one
scan of the lease table per beat, as clients of the Kinesis kind do. It counts the statements that
reach the database and the rows that they write; begins and commits are not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.figures import print_rows
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.roles.operations import chunks
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore

KEY = GroupKey.parse("group", "stream")
BEATS_PER_TERM = 3
SHARDS_AT_ONCE = 5_000
TIMING = Timing()


@dataclass
class Cost:
    """Statements and writes that reached the database."""

    statements: int = 0
    rows_written: int = 0
    seconds: float = 0.0


@contextmanager
def counted() -> Generator[Cost]:
    """Count the statements of all engines, and the rows that SQLite says they changed."""
    cost = Cost()
    changes: dict[int, int] = {}

    def before(_c: object, cursor: Any, *_: object) -> None:
        changes.setdefault(id(cursor.connection), cursor.connection.total_changes)

    def after(_c: object, _cursor: object, statement: str, *_: object) -> None:
        cost.statements += not statement.startswith(("BEGIN", "PRAGMA"))

    def commit(connection: sa.Connection) -> None:
        raw = connection.connection.dbapi_connection
        assert raw is not None
        cost.rows_written += raw.total_changes - changes.get(id(raw), raw.total_changes)
        changes[id(raw)] = raw.total_changes

    events = {"before_cursor_execute": before, "after_cursor_execute": after, "commit": commit}
    for name, listener in events.items():
        sa.event.listen(sa.Engine, name, listener)
    began = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - began
        for name, listener in events.items():
            sa.event.remove(sa.Engine, name, listener)


def settled_group(store: LeaseStore, shards: int, nodes: int) -> list[NodeName]:
    """Make a group whose shards are spread evenly over its nodes already."""
    names = [NodeName(f"n{number}") for number in range(nodes)]
    store.create_group(Group(KEY, timeout_s=TIMING.timeout_s))
    for name in names:
        store.register(KEY, Node(name, 0, f"{name}-1"), observer="benchmark")
    add_held(store, KEY, shards, names)
    return names


def add_held(store: LeaseStore, key: GroupKey, shards: int, names: list[NodeName]) -> None:
    """Add shards that nodes hold already: a million claims would take minutes."""
    held, owners = ShardState.ALREADY_ALLOC, [names[n % len(names)] for n in range(shards)]
    leases = [ShardLease(ShardId(str(n)), held, 1, own, own) for n, own in enumerate(owners)]
    for part in chunks(leases, SHARDS_AT_ONCE):
        store._changing("set up", key, lambda rows, part=part: rows.add(*part))


def volume_leases(url: str, shards: int, nodes: int) -> Cost:
    """Play one term of every node, one after the other: they do not concern each other."""
    total = Cost()
    store = open_store(url)
    for name in settled_group(store, shards, nodes):
        now = [0.0]
        node = Rebalancer(
            store,
            KEY,
            serves=(name,),
            timing=TIMING,
            observer=str(name),
            incarnation_of=lambda served: f"{served}-1",
            clock=lambda now=now: now[0],
        )
        report = node.tick()  # Reads the whole group once, as every new process does.
        if report.decisions:
            raise RuntimeError(f"the group was not settled: {report.explanation}")
        with counted() as cost:
            for _ in range(BEATS_PER_TERM):
                now[0] += TIMING.beat_s * 0.99
                node.tick()
        total.statements += cost.statements
        total.rows_written += cost.rows_written
        total.seconds += cost.seconds
    store.close()
    return total


def lease_per_shard(url: str, shards: int, nodes: int) -> Cost:
    """Play the same with a counter on every shard, renewed by its owner three times a term."""
    engine = sa.create_engine(url)
    leases = sa.Table(
        "leases",
        sa.MetaData(),
        sa.Column("shard", sa.String(64), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("counter", sa.Integer, nullable=False),
    )
    rows = [
        {"shard": str(number), "owner": f"n{number % nodes}", "counter": 0}
        for number in range(shards)
    ]
    with engine.begin() as connection:
        # Kinder than the lease store, whose commits wait for the disk.
        connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        connection.exec_driver_sql("PRAGMA synchronous=OFF")
        leases.create(connection)
        connection.execute(leases.insert(), rows)
    renewal = (
        leases.update()
        .where(
            leases.c.shard == sa.bindparam("of_shard"),
            leases.c.owner == sa.bindparam("of_owner"),
            leases.c.counter == sa.bindparam("seen"),
        )
        .values(counter=leases.c.counter + 1)
    )
    with counted() as cost:
        for beat in range(BEATS_PER_TERM):
            for number in range(nodes):
                with engine.connect() as connection:
                    connection.execute(sa.select(leases)).all()
                for row in rows[number::nodes]:
                    with engine.begin() as connection:
                        renewed = connection.execute(
                            renewal,
                            {"of_shard": row["shard"], "of_owner": row["owner"], "seen": beat},
                        )
                        if renewed.rowcount != 1:
                            raise RuntimeError("a renewal was lost")
    engine.dispose()
    return cost


WAYS: dict[str, Callable[[str, int, int], Cost]] = {
    "volume leases": volume_leases,
    "lease per shard": lease_per_shard,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 1000, 10_000])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10, 100])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for shards in arguments.shards:
        for nodes in arguments.nodes:
            for name, way in WAYS.items():
                with tempfile.TemporaryDirectory() as folder:
                    cost = way(f"sqlite:///{Path(folder)}/leases.db", shards, nodes)
                rows.append(
                    {
                        "shards": shards,
                        "nodes": nodes,
                        "way": name,
                        "statements": cost.statements,
                        "rows_written": cost.rows_written,
                        "seconds": round(cost.seconds, 3),
                    }
                )
    note = f"one term of {TIMING.timeout_s:g} s, all nodes together, SQLite"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
