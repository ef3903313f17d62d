"""A hundred thousand shards and a thousand nodes on one MySQL: what staying and changing cost.

`python -m benchmarks.scale [--shards 100000] [--nodes 1000] [--groups 1] [--changing 100] [--phases
claims,die,flap] [--quick] [--json]` starts a MySQL of its own (MariaDB where there is none) and
plays one deployment of agents: one process rebalances each group for all its nodes every 5 s, each
node's agent beats in each group, and a run has one shard in a hundred open, which it lets go at the
end of a batch. The shards are spread evenly over the groups; each node is a member of all of them.

Rebalancing, agents and store are the real ones. Time is simulated, and goes on by as much as a
tick takes on the clock of the wall: a tick that is slower than its interval delays the next one,
and beats and deadlines see it. Statements and rows are the server's own counts. The agents beat one
after another, some of them through their own code, which is counted, and the others by one
statement, which is not: "all agents" is computed from those that were counted.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.upkeep import add_held
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group, Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.node_planning import CHECK_S, NODES_PER_SECOND, NodePlanner
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import FEW_SHARDS, Rebalancer
from dagster_leasehold.lease_store.rules.planning import moves_lower_bound
from dagster_leasehold.lease_store.shard_rows import ShardListing, Tenure
from dagster_leasehold.lease_store.store import LeaseStore
from tests import mariadb, mysql
from tests.database_server import DatabaseServer

TIMING = Timing()
TICK_S = 5.0
KEEP_S = TIMING.beat_s
ROUNDS_MAX = 200
IDLE_ROUNDS = 3
FLAPPING_AT_ONCE = 10
AGENTS_COUNTED = 20
PLANNERS_COUNTED = 3
"""Fewer: each keeps a picture of the group."""
RUNS_OPEN = 100
"""One shard in so many is open in a run when the nodes begin to change."""
DATABASE = "leases"
WRITES = ("Innodb_rows_inserted", "Innodb_rows_updated", "Innodb_rows_deleted")
COUNTERS = {"Questions", "Innodb_rows_read", *WRITES}


@dataclass
class Cost:
    """The costs of some calls: by the clock of the wall, by this process's, and by the server."""

    ms: float = 0.0
    cpu_ms: float = 0.0
    statements: int = 0
    rows_read: int = 0
    rows_written: int = 0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.ms - other.ms,
            self.cpu_ms - other.cpu_ms,
            self.statements - other.statements,
            self.rows_read - other.rows_read,
            self.rows_written - other.rows_written,
        )


class Meter:
    """The counters of a server, read through a connection that is left open."""

    def __init__(self, server: DatabaseServer) -> None:
        self._connection = server.connect(DATABASE)

    def close(self) -> None:
        self._connection.close()

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Send a statement of the simulation's own, outside of what is measured."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def _cost(self) -> Cost:
        with self._connection.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS")
            now = {name: int(value) for name, value in cursor.fetchall() if name in COUNTERS}
        return Cost(
            time.perf_counter() * 1000,
            time.process_time() * 1000,
            now["Questions"],
            now["Innodb_rows_read"],
            sum(now[name] for name in WRITES),
        )

    @contextmanager
    def measured(self) -> Generator[Cost]:
        """Measure what a block costs; the values are there when it ends."""
        cost, before = Cost(), self._cost()
        yield cost
        vars(cost).update(vars(self._cost() - before))
        cost.statements -= 1  # its own look


@dataclass
class Share:
    """One group of the deployment: its rebalancing, its living nodes and its open shards."""

    key: GroupKey
    rebalancer: Rebalancer
    living: dict[NodeName, Member]
    tenures: dict[ShardId, Tenure] = field(default_factory=dict[ShardId, Tenure])
    cursor: str = ""


class World:
    """The deployment on simulated time."""

    def __init__(
        self, store: LeaseStore, meter: Meter, *, groups: int, shards: int, nodes: int, held: bool
    ) -> None:
        self.store = store
        self.meter = meter
        self.shards = shards // groups
        self._base_s = 0.0
        self._began: float | None = None
        self._incarnations = count()
        names = [NodeName(f"n{number}") for number in range(nodes)]
        self.shares = [self._share(number) for number in range(groups)]
        for share in self.shares:
            self.join(share, names)
            if held:
                add_held(store, share.key, self.shards, names)
                continue
            listing = [ShardListing(ShardId(str(shard))) for shard in range(self.shards)]
            store.sync_shards(share.key, listing, observer="benchmark")

    def clock(self) -> float:
        """Return simulated seconds; while somebody works they go on with those of the wall."""
        return self._base_s + (time.perf_counter() - self._began if self._began else 0.0)

    def _share(self, number: int) -> Share:
        key = GroupKey.parse("group", f"stream-{number}")
        self.store.create_group(Group(key, timeout_s=TIMING.timeout_s))
        rebalancer = Rebalancer(
            self.store,
            key,
            serves=(),
            timing=TIMING,
            observer="planner",
            incarnation_of=lambda name: f"{name}-1",
            clock=self.clock,
            beats=False,
            follows_above=FEW_SHARDS,
            serving=lambda nodes: tuple(node.name for node in nodes),
        )
        return Share(key, rebalancer, {})

    def join(self, share: Share, names: list[NodeName]) -> None:
        """Have nodes arrive, each through its agent."""
        for name in names:
            node = Node(name, 0, f"{name}-{next(self._incarnations)}", address="here")
            agent = Member(self.store, share.key, node, clock=self.clock)
            agent.keep_alive(accepts_runs=True)
            share.living[name] = agent

    def leave(self, share: Share, names: list[NodeName]) -> None:
        """Have nodes leave, as an agent does that is told to end and whose runs have ended."""
        for name in names:
            share.living[name].leave()
        self.die(share, names)

    def die(self, share: Share, names: list[NodeName]) -> None:
        """Have nodes fall silent with all that they hold."""
        for name in names:
            del share.living[name]
        share.tenures = {
            shard: tenure
            for shard, tenure in share.tenures.items()
            if tenure.holder in share.living
        }

    def open_shards(self, share: Share) -> None:
        """Have runs open one shard in a hundred."""
        for shard, (holder, _) in list(self.owners(share).items())[::RUNS_OPEN]:
            outcome = self.store.open_tenure(
                share.key, shard, NodeName(holder or ""), f"run-{shard}"
            )
            assert isinstance(outcome, Opened)
            share.tenures[shard] = outcome.tenure

    def owners(self, share: Share) -> dict[ShardId, tuple[str | None, str]]:
        """Return next owner and state of each shard."""
        rows = self.meter.rows(
            "SELECT shard_id, lease_owner, state FROM loghub_client_shard_lease "
            "WHERE logstream_sig = %s",
            share.key.stream,
        )
        return {ShardId(_text(shard)): (_text(owner), _text(state)) for shard, owner, state in rows}

    def balanced(self, share: Share, owners: dict[ShardId, tuple[str | None, str]]) -> bool:
        """Return True if living nodes have all shards, in numbers that differ by at most one."""
        held = Counter(owner for owner, _ in owners.values())
        counts = [held[name] for name in share.living]
        settled = all(state == "already_alloc" for _, state in owners.values())
        return settled and held.keys() <= share.living.keys() and max(counts) - min(counts) <= 1

    def tick(self, share: Share) -> Cost:
        """Have the deployment rebalance one group, and its runs come to the end of a batch."""
        with self.meter.measured() as cost:
            self._began = time.perf_counter()
            report = share.rebalancer.tick(share.cursor)
            self._base_s, self._began = self.clock(), None
        if report.troubles:
            raise RuntimeError(report.troubles[0])
        share.cursor = report.remembered
        views = self.store.review(list(share.tenures.values()))
        for shard, view in views.items():
            tenure = share.tenures[shard]
            if view.current and view.transfer_to is not None:
                self.store.close_tenure(tenure, reason="benchmark")
            if not view.current or view.transfer_to is not None:
                del share.tenures[shard]
        return cost

    def round(self, phase: Phase) -> None:
        """Have each group ticked once, and all nodes beat as often as they would meanwhile."""
        began_s = self._base_s
        for share in self.shares:
            phase.ticks.append(self.tick(share))
        self._base_s = max(self._base_s, began_s + TICK_S)
        for share in self.shares:
            self.meter.rows(
                "UPDATE loghub_client_worker_instance SET lease_id = lease_id + 1 WHERE "
                "logstream_sig = %s AND worker_instance IN %s",
                share.key.stream,
                list(share.living),
            )


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


class Phase:
    """The ticks of a phase, and the changes of owner in it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ticks: list[Cost] = []
        self.moves = self.fewest = 0
        self._began_s = world.clock()
        self._owners = [world.owners(share) for share in world.shares]

    def expect(self) -> None:
        """Count the fewest moves that the nodes' last change needs."""
        for share, owners in zip(self.world.shares, self._owners, strict=True):
            held = dict.fromkeys(share.living, 0)
            held |= Counter(NodeName(o) for o, _ in owners.values() if o in share.living)
            self.fewest += moves_lower_bound(held, len(owners))

    def play(self, *, rounds_min: int = 1, rounds_max: int = ROUNDS_MAX) -> bool:
        """Play rounds until all groups are balanced; False if that was not within the most."""
        for number in range(rounds_max):
            self.world.round(self)
            self.see()
            pairs = zip(self.world.shares, self._owners, strict=True)
            if number + 1 >= rounds_min and all(self.world.balanced(*pair) for pair in pairs):
                return True
        return False

    def see(self) -> None:
        """Count the shards whose owner has changed since the last look."""
        for place, share in enumerate(self.world.shares):
            before, after = self._owners[place], self.world.owners(share)
            self.moves += sum(
                owner is not None and owner != before[shard][0]
                for shard, (owner, _) in after.items()
            )
            self._owners[place] = after

    def row(self) -> dict[str, Any]:
        """Return one line of the table."""
        ms = sorted(tick.ms for tick in self.ticks)
        rounds = len(ms) // len(self.world.shares)
        print(f"done: {self.name}, after {time.process_time():.0f} s of work", file=sys.stderr)
        return {
            "phase": self.name,
            "simulated s": round(self.world.clock() - self._began_s, 1),
            "rounds": rounds,
            "moves": self.moves,
            "fewest": self.fewest,
            "tick ms, median": round(statistics.median(ms), 1),
            "95 %": round(ms[int(len(ms) * 0.95)], 1),
            "slowest": round(ms[-1], 1),
            "CPU ms, median": round(statistics.median(tick.cpu_ms for tick in self.ticks), 1),
            "CPU ms, slowest": round(max(tick.cpu_ms for tick in self.ticks), 1),
            "statements": sum(tick.statements for tick in self.ticks),
            "rows read": sum(tick.rows_read for tick in self.ticks),
            "rows written": sum(tick.rows_written for tick in self.ticks),
            "RSS MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def settle(world: World, name: str, change: Callable[[Share], None] = lambda _: None,
           rounds_min: int = 1) -> dict[str, Any]:  # fmt: skip
    """Change something in all groups, play until they are balanced; return the phase's line."""
    phase = Phase(world, name)
    for share in world.shares:
        change(share)
    phase.expect()
    if not phase.play(rounds_min=rounds_min):
        raise RuntimeError(f"{name}: not balanced after {ROUNDS_MAX} rounds")
    return phase.row()


def flap(world: World, changing: list[NodeName]) -> dict[str, Any]:
    """Have nodes leave, a few in each round, while those that left in the last one come back."""
    phase = Phase(world, f"{len(changing)} leave and come back, {FLAPPING_AT_ONCE} a round")
    turns = [changing[at : at + FLAPPING_AT_ONCE] for at in range(0, len(changing), 10)]
    for leaving, returning in zip([*turns, []], [[], *turns], strict=True):
        for share in world.shares:
            world.leave(share, leaving)
            world.join(share, returning)
        phase.expect()
        phase.play(rounds_max=1)
    if not phase.play():
        raise RuntimeError(f"{phase.name}: not balanced after {ROUNDS_MAX} rounds")
    return phase.row()


def beating(world: World) -> dict[str, Any]:
    """Measure the beats of some agents in all their groups, and compute those of all."""
    nodes = list(world.shares[0].living)
    chosen = nodes[:AGENTS_COUNTED]
    world._base_s += KEEP_S  # pyright: ignore[reportPrivateUsage]
    with world.meter.measured() as cost:
        for name in chosen:
            for share in world.shares:
                share.living[name].keep_alive(accepts_runs=True)
    return _of_all("beats", world, cost, len(chosen), KEEP_S)


def planning(world: World) -> dict[str, Any]:
    """Measure the looks of some agents' planners at settled groups, and compute those of all."""
    nodes = list(world.shares[0].living)
    chosen = nodes[:PLANNERS_COUNTED]
    planners = [
        NodePlanner(world.store, share.key, name, observer=f"agent of {name}", clock=world.clock)
        for name in chosen
        for share in world.shares
    ]
    every_s = max(CHECK_S, len(nodes) / NODES_PER_SECOND)
    for planner in planners:
        planner.plan()  # the first look of a process reads the group
    world._base_s += every_s  # pyright: ignore[reportPrivateUsage]
    with world.meter.measured() as cost:
        for planner in planners:
            planner.plan()
    return _of_all("looks", world, cost, len(chosen), every_s)


def _of_all(what: str, world: World, cost: Cost, chosen: int, every_s: float) -> dict[str, Any]:
    nodes, groups = len(world.shares[0].living), len(world.shares)
    rate = nodes / chosen / every_s
    return {
        "of all agents": what,
        "a second": round(nodes * groups / every_s),
        "ms each": round(cost.ms / chosen / groups, 2),
        "CPU ms each": round(cost.cpu_ms / chosen / groups, 2),
        "statements/s": round(cost.statements * rate),
        "rows read/s": round(cost.rows_read * rate),
        "rows written/s": round(cost.rows_written * rate),
    }


def measure(
    server: DatabaseServer, *, groups: int, shards: int, nodes: int, changing: int, phases: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Play the phases one after another; return their lines, and what the agents cost."""
    store, meter = open_store(server.create_database(DATABASE), upgrade=True), Meter(server)
    held = "claims" not in phases
    world = World(store, meter, groups=groups, shards=shards, nodes=nodes, held=held)
    first = "a new process" if held else "all shards are claimed"
    rows = [settle(world, first)]
    for share in world.shares:
        world.open_shards(share)
    rows.append(settle(world, "nothing happens", rounds_min=IDLE_ROUNDS))
    agents = [beating(world)]
    more = [NodeName(f"n{number}") for number in range(nodes, nodes + changing)]
    rows.append(settle(world, f"{changing} nodes join", lambda share: world.join(share, more)))
    if "die" in phases:
        rows.append(settle(world, f"{changing} nodes die", lambda share: world.die(share, more)))
    if "flap" in phases:
        rows.append(flap(world, [NodeName(f"n{number}") for number in range(changing)]))
    agents.append(planning(world))
    meter.close()
    store.close()
    return rows, agents


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=100_000, help="of all groups together")
    parser.add_argument("--nodes", type=int, default=1_000, help="members of every group")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--changing", type=int, default=100, help="nodes that join, die and flap")
    parser.add_argument("--quick", action="store_true", help="a hundredth of all but the groups")
    parser.add_argument("--phases", default="claims,die,flap", help="leave some out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    part = 100 if arguments.quick else 1
    kind = mysql if mysql.reason_missing() is None else mariadb
    with kind.running() as server:
        rows, agents = measure(
            server,
            groups=arguments.groups,
            shards=arguments.shards // part,
            nodes=arguments.nodes // part,
            changing=max(arguments.changing // part, 1),
            phases=arguments.phases,
        )
    note = (
        f"{kind.__name__.removeprefix('tests.')}, {arguments.shards // part:,} shards and "
        f"{arguments.nodes // part:,} nodes in {arguments.groups} groups, "
        f"T {TIMING.timeout_s:g} s, a tick every {TICK_S:g} s"
    )
    print_rows(rows, as_json=arguments.json, note=note)
    print_rows(agents, as_json=arguments.json, note="staying alive")


if __name__ == "__main__":
    main()
