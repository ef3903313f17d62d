"""How soon records are committed, and readable, after something has died or moved.

`python -m benchmarks.recovery [--rounds 5] [--events run agent host leave hand-over]
[--database sqlite|mysql|mariadb] [--json]` starts `leasehold dev` with two nodes over a log of 8
shards, at 300 records a second and a commit interval of 1 s, with leases and Dagster's storage in
the database, and lets one event after the other happen:

* `run`: the run of a node is killed, its agent lives.
* `agent`: the agent is killed and started again.
* `host`: agent, code server and runs of a node are killed together, and nothing starts them again.
* `leave`: an agent is told to end.
* `hand-over`: two nodes are told to exchange one shard each.

Each figure is in seconds, the median of the rounds, and of that shard of the node that took
longest: from the event to the shard's first commit by another tenure, and until the table showed
that commit; the longest time without a commit; and the time for which the shard had no owner.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import print_rows
from benchmarks.figures.live_deployment import DATABASES, KEY, LiveDeployment, new_home
from benchmarks.figures.live_records import log_flow
from dagster_leasehold.assets.run_process import recorded_process
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance
from tests.acceptance.leasehold_process import agents_of, kill_node, standing_still

EVENTS = ("run", "agent", "host", "leave", "hand-over")
RATE, INTERVAL_S = 300, 1.0
WARM_UP_S, SETTLED_S, POLL_S = 45.0, 15.0, 0.05
WATCHED_S = {"run": 25.0, "agent": 30.0, "host": 40.0, "leave": 20.0, "hand-over": 10.0}


@dataclass(slots=True)
class Shard:
    """The commits of a shard since the event, in seconds from then."""

    tenure: tuple[str, int]
    check_point: str
    commit_at: float = 0.0
    longest: float = 0.0
    unowned: float = 0.0
    first_commit: float | None = None
    first_number: int = 0
    readable: float | None = None

    def see(self, row: ShardLease, at_s: float, looked_s: float) -> None:
        """Take note of the shard's row, `looked_s` after the last look."""
        if row.consumer_owner is None:
            self.unowned += looked_s
        if row.check_point == self.check_point:
            return
        self.longest = max(self.longest, at_s - self.commit_at)
        self.check_point, self.commit_at = str(row.check_point), at_s
        same = self.tenure == (row.consumer_run, row.consumer_epoch)
        if self.first_commit is None and not same:
            self.first_commit = at_s


@dataclass
class Scene:
    """A deployment with two nodes, and what happens to it."""

    deployment: LiveDeployment
    store: LeaseStore

    def leases(self) -> dict[ShardId, ShardLease]:
        """Return the shards of the group."""
        return {row.shard: row for row in self.store.snapshot(KEY).shards}

    def nodes(self) -> list[NodeName]:
        """Return the nodes that have shards, in order."""
        owners = (row.consumer_owner for row in self.leases().values())
        return sorted({owner for owner in owners if owner is not None})

    def shared(self) -> bool:
        """Return True if two nodes have half of the shards each, and each shard a run."""
        rows = self.leases().values()
        owners = Counter(row.consumer_owner for row in rows if row.consumer_run)
        return list(owners.values()) == [len(rows) // 2] * 2

    def measure(self, event: str, node: NodeName) -> dict[str, float]:
        """Let an event happen to a node, and return what became of its shards."""
        before = self.leases()
        mine = [shard for shard, row in before.items() if row.consumer_owner == node]
        if event == "hand-over":
            mine = mine[:1]
        rows = {shard: before[shard] for shard in mine}
        shards = {
            shard: Shard((row.consumer_run, row.consumer_epoch), str(row.check_point))
            for shard, row in rows.items()
        }
        with getattr(self, event.replace("-", "_"))(node, mine):
            self._watch(shards, WATCHED_S[event])
        seen = shards.values()
        missing = WATCHED_S[event]
        # Where nothing but an agent has died, the tenures go on.
        goes_on = event == "agent"
        return {
            "first commit": 0.0 if goes_on else max(each.first_commit or missing for each in seen),
            "readable": 0.0 if goes_on else max(each.readable or missing for each in seen),
            "longest without": max(max(each.longest, missing - each.commit_at) for each in seen),
            "unowned": max(each.unowned for each in seen),
        }

    def _watch(self, shards: dict[ShardId, Shard], seconds: float) -> None:
        began_s = before_s = time.monotonic()
        while (at_s := time.monotonic() - began_s) < seconds:
            rows = self.leases()
            for shard, seen in shards.items():
                seen.see(rows[shard], at_s, at_s + began_s - before_s)
                if seen.first_commit is not None and seen.readable is None:
                    self._look_for_table(shard, seen, at_s)
            before_s = at_s + began_s
            time.sleep(POLL_S)

    def _look_for_table(self, shard: ShardId, seen: Shard, at_s: float) -> None:
        if not seen.first_number:
            newest = next(self.store.each_batch(KEY, shard, newest_first=True))
            seen.first_number = newest.sequence
        until = self.store.published_until(KEY, [shard]) or {}
        if until.get(shard, 0) > seen.first_number:
            seen.readable = at_s

    # -- events ---------------------------------------------------------------------------------

    @contextmanager
    def run(self, node: NodeName, shards: Sequence[ShardId]) -> Generator[None]:
        """Kill the run that has the shards open."""
        del node
        run = self.leases()[shards[0]].consumer_run
        with opened_instance(self.deployment.settings) as instance:
            stored = instance.get_run_by_id(run)
        assert stored is not None
        process = ProcessIdentity.parse(recorded_process(stored))
        assert process is not None
        psutil.Process(process.pid).kill()
        yield

    @contextmanager
    def agent(self, node: NodeName, shards: Sequence[ShardId]) -> Generator[None]:
        """Kill the agent alone."""
        del shards
        self._agent(node).kill()
        yield

    @contextmanager
    def host(self, node: NodeName, shards: Sequence[ShardId]) -> Generator[None]:
        """Kill all processes of a node, and keep `leasehold dev` from starting them again."""
        del shards
        with standing_still(self.deployment.process):
            kill_node(self.deployment.settings.home, node)
            yield

    @contextmanager
    def leave(self, node: NodeName, shards: Sequence[ShardId]) -> Generator[None]:
        """Tell an agent to end."""
        del shards
        with standing_still(self.deployment.process):
            self._agent(node).terminate()
            yield

    @contextmanager
    def hand_over(self, node: NodeName, shards: Sequence[ShardId]) -> Generator[None]:
        """Have two nodes exchange one shard each."""
        rows = self.leases()
        other = next(each for each in self.nodes() if each != node)
        back = next(shard for shard, row in rows.items() if row.consumer_owner == other)
        wanted = {shards[0]: other, back: node}
        self.store.begin_transfer(
            KEY,
            {shard: (to, rows[shard].lease_id, "measured") for shard, to in wanted.items()},
            observer="benchmark",
        )
        yield

    def _agent(self, node: NodeName) -> psutil.Process:
        (agent,) = agents_of(self.deployment.settings.home, node)
        return agent


def measure(
    folder: Path, events: Sequence[str], rounds: int, variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row per event."""
    rows: list[dict[str, Any]] = []
    if url := variables.get("LEASEHOLD_DATABASE_URL"):
        open_store(url, upgrade=True).close()
    home = folder / "home"
    with LiveDeployment(home, interval_s=INTERVAL_S, variables=variables) as deployment:
        store = open_store(deployment.settings.store_url)
        scene = Scene(deployment, store)
        with log_flow(deployment.log, RATE):
            time.sleep(WARM_UP_S)
            for event in events:
                each: list[dict[str, float]] = []
                for number in range(rounds):
                    _wait_until(scene.shared)
                    time.sleep(SETTLED_S)
                    nodes = scene.nodes()
                    each.append(scene.measure(event, nodes[number % len(nodes)]))
                medians = {name: statistics.median(row[name] for row in each) for name in each[0]}
                rows.append({"event": event} | {name: round(s, 1) for name, s in medians.items()})
                print(rows[-1], [round(row["first commit"], 1) for row in each], flush=True)
        store.close()
    return rows


def _wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300.0
    while not reached():
        assert time.monotonic() < deadline, "the nodes do not share the shards again"
        time.sleep(1.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=EVENTS)
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with new_home(arguments.database) as (folder, variables):
        rows = measure(folder, arguments.events, arguments.rounds, variables)
    note = f"{arguments.database}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} after"
    print_rows(rows, as_json=arguments.json, note=note)


if __name__ == "__main__":
    main()
