"""A log that grows, the nodes that share it, and what a test looks at."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import psutil

from dagster_leasehold.assets.partitions import NODE_TAG, PROCESS_TAG
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance
from dagster_leasehold.shard_sources.local_log import LocalLog

STREAM = "demo"
KEY = GroupKey.parse("default", STREAM)
SHARDS = 12
TIMEOUT_S = 30.0
TICK_S = 5.0
BEFORE = 5
"""Records in every shard before the first node starts."""


def make_home(home: Path) -> LocalLog:
    """A log with a few records, and settings of small batches."""
    home.mkdir()
    (home / "leasehold.toml").write_text(
        f"lease_timeout_s = {TIMEOUT_S}\n"
        # One Spark server for all nodes of this machine, those started by hand as well.
        f"spark_state = {json.dumps(str(home / 'spark'))}\n\n"
        f'[[streams]]\nname = "{STREAM}"\nbatch_records_max = 50\nrun_budget_s = 20\n'
        "commit_interval_s = 0.5\nidle_limit_s = 2\n"
    )
    log = LocalLog.create(home / "logs" / STREAM, SHARDS)
    for row in log.list_shards():
        log.append(row.shard, [value(row.shard, number) for number in range(BEFORE)])
    return log


def value(shard: str, number: int) -> bytes:
    return f"{shard}-{number}".encode()


class Writer:
    """Appends a record to each shard about once a second, until the block ends."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.written = BEFORE

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        shards = [row.shard for row in self._log.list_shards()]
        while not self._stopping.wait(1.0):
            for shard in shards:
                self._log.append(shard, [value(shard, self.written)])
            self.written += 1


class Watched:
    """The deployment of a home as its lease store and its Dagster instance show it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.settings = Settings(home=home)

    @cached_property
    def store(self) -> LeaseStore:
        return open_store(self.settings.store_url)

    def counts(self) -> dict[str, int]:
        """Return the number of shards of each member; empty while anything is on its way."""
        store = self.store
        if KEY not in {group.key for group in store.groups()}:
            return {}
        snapshot = store.snapshot(KEY)
        if any(row.state is not ShardState.ALREADY_ALLOC for row in snapshot.shards):
            return {}
        owners = [row.consumer_owner for row in snapshot.shards]
        return {node.name: owners.count(node.name) for node in snapshot.nodes if node.member}

    def shared_by(self, *names: str) -> bool:
        """Return True if exactly these nodes are members, and balanced to within one shard."""
        counts = self.counts()
        if set(counts) != set(names):
            return False
        return max(counts.values()) - min(counts.values()) <= 1

    def check_points(self) -> dict[str, int]:
        return {row.shard: int(row.check_point or 0) for row in self.store.snapshot(KEY).shards}

    def last_entry(self) -> int:
        return self.store.journal(KEY)[-1].sequence

    def kinds_after(self, sequence: int) -> list[str]:
        """Return the journal's entries on members and edges: `evict node-b`, `edge 5`."""
        kinds: list[str] = []
        for entry in self.store.journal(KEY, after=sequence):
            if entry.kind == "edge":
                kinds.append(f"edge {entry.edge}")
            elif entry.kind in ("evict", "leave", "join", "resume"):
                kinds.append(f"{entry.kind} {entry.from_owner or entry.to_owner}")
        return kinds

    def silence_of(self, node: str) -> float:
        """Return the seconds without a beat after which the node was last evicted."""
        reasons = [
            entry.reason
            for entry in self.store.journal(KEY)
            if entry.kind == "evict" and entry.from_owner == node
        ]
        match = re.search(r"no beat for ([\d.]+) s", reasons[-1])
        assert match, reasons
        return float(match[1])

    def sessions(self, node: str) -> list[int]:
        """The process numbers of a node's code servers, as its agent noted them."""
        with suppress(OSError, ValueError):
            state = json.loads((self.settings.node_folder(node) / "agent.json").read_text())
            return [int(note.split("|")[1]) for note in state["sessions"]]
        return []

    def run_parents(self) -> Iterator[tuple[str, int]]:
        """For each run at work: the node that it consumes as, and the parent of its process."""
        from dagster import DagsterRunStatus, RunsFilter

        with opened_instance(self.settings) as instance:
            runs = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED]))
        for run in runs:
            note = run.tags.get(PROCESS_TAG)
            if note and NODE_TAG in run.tags:
                with suppress(psutil.Error):
                    yield run.tags[NODE_TAG], psutil.Process(int(note.split("|")[1])).ppid()

    def kill_part(self, module: str) -> None:
        """Kill -9 the deployment's own process of a module of Dagster."""
        parts = [process for process in psutil.process_iter() if self._runs(process, module)]
        assert parts, f"{module} runs"
        for process in parts:
            process.kill()

    def _runs(self, process: psutil.Process, module: str) -> bool:
        with suppress(psutil.Error):
            words = process.cmdline()
            home = process.environ().get("DAGSTER_HOME", "")
            return module in words and Path(home).is_relative_to(self.home.absolute())
        return False

    def kill(self, node: str) -> None:
        """Kill -9 a node's agent, its code server and all of its runs at once."""
        sessions = set(self.sessions(node))
        agents = {
            process.pid
            for process in psutil.process_iter()
            if _is_agent(process, node, str(self.home))
        }
        assert sessions, "its agent has noted a code server"
        assert agents, "its agent runs"
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid in agents or os.getsid(process.pid) in sessions:
                    os.kill(process.pid, signal.SIGKILL)


def _is_agent(process: psutil.Process, node: str, home: str) -> bool:
    with suppress(psutil.Error):
        line = process.cmdline()
        return "node" in line and node in line and home in line
    return False
