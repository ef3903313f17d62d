"""Hosts that share only a database, an object store and Kafka, and checks of their results.

Each host is a separate home on this machine.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import psutil
from pydantic import SecretStr

from dagster_leasehold.assets.partitions import NODE_TAG, PROCESS_TAG
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.instance import INSTANCE_FILE, production_text
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance
from tests.acceptance.leasehold_process import kill_node, sessions_of
from tests.declared import declare, stream_text
from tests.kafka_broker import KafkaBroker, Partition
from tests.kafka_wire import Stored
from tests.table_engines import duckdb_query, let_duckdb_into_the_store

STREAM = "demo"
KEY = GroupKey.parse("default", STREAM)
SHARDS = 12
TIMEOUT_S = 30.0
TICK_S = 5.0
BEFORE = 5
"""Records in every shard before the first node starts."""
AT_MS = 1_700_000_000_000
SETTINGS = """
output = "{output}"
lease_timeout_s = {timeout_s}
"""


def make_home(home: Path, output: str, broker: str, transform: str = "") -> None:
    """Create a host's home with its source, small batches and output.

    Args:
        home: the new folder.
        output: the place of all committed output.
        broker: the broker of the topic.
        transform: the transform as `module.function`; without one, records stay unchanged.
    """
    module, _, function = transform.rpartition(".")
    stream = stream_text(
        STREAM,
        "kafka",
        options={"bootstrap_servers": broker},
        limits="Limits(records_max=50)",
        pace="Pace(run_budget_s=20, commit_interval_s=0.5, idle_limit_s=2)",
        transform=function or "None",
    )
    settings = SETTINGS.format(output=output, timeout_s=TIMEOUT_S)
    before = f"from {module} import {function}" if transform else ""
    declare(home, stream, settings=settings, before=before)


def join_dagster(home: Path) -> None:
    """Write the file that an agent needs, as the guide for several hosts says."""
    folder = Settings(home=home).dagster_home
    folder.mkdir()
    (folder / INSTANCE_FILE).write_text(production_text())


def value(shard: str, number: int) -> bytes:
    return f"{shard}-{number}".encode()


class Writer:
    """Appends a record to each partition about once a second, until the block ends."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._partitions = [Partition() for _ in range(SHARDS)]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.written = 0
        for _ in range(BEFORE):
            self._append()
        broker.topics[STREAM] = self._partitions

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop writing."""
        self._stopping.set()
        self._thread.join()

    def expected(self) -> list[tuple[str, bytes]]:
        """All records, by shard and value."""
        shards = map(str, range(SHARDS))
        return sorted((shard, value(shard, n)) for shard in shards for n in range(self.written))

    def _write(self) -> None:
        while not self._stopping.wait(1.0):
            self._append()

    def _append(self) -> None:
        at_ms = AT_MS + self.written
        for shard, partition in enumerate(self._partitions):
            partition.append([Stored(0, at_ms, value(str(shard), self.written))])
        self.written += 1


class Watched:
    """The deployment as its lease store, its Dagster instance and its table show it.

    Args:
        home: of the host of Dagster's daemon.
        homes: of the host of each node.
        database_url: of the lease store.
    """

    def __init__(self, home: Path, homes: Mapping[str, Path], database_url: str) -> None:
        self.home = home
        self.homes = homes
        self.settings = Settings(home=home, database_url=SecretStr(database_url))

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

    def published(self) -> list[tuple[str, bytes]]:
        """All records of the table, by shard and value, as DuckDB reads them from the store."""
        publication = self.store.publication(KEY)
        pointer = publication and self.store.table_pointer(publication.table)
        if not pointer:
            return []
        let_duckdb_into_the_store()
        return sorted(duckdb_query(pointer.location, "shard_id, value"))

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
        match = re.search(r"no heartbeat for ([\d.]+) s", reasons[-1])
        assert match, reasons
        return float(match[1])

    def sessions(self, node: str) -> list[int]:
        """The process numbers of a node's code servers, as its agent noted them."""
        return sessions_of(self.homes[node], node)

    def run_sessions(self) -> Iterator[tuple[str, int]]:
        """For each run at work: the node that it consumes as, and the session of its process."""
        from dagster import DagsterRunStatus, RunsFilter

        with opened_instance(self.settings) as instance:
            runs = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED]))
        for run in runs:
            note = run.tags.get(PROCESS_TAG)
            if note and NODE_TAG in run.tags:
                with suppress(OSError):
                    yield run.tags[NODE_TAG], os.getsid(int(note.split("|")[1]))

    def runs_of(self, node: str) -> set[str]:
        """The ids of a node's runs."""
        from dagster import RunsFilter

        with opened_instance(self.settings) as instance:
            return {run.run_id for run in instance.get_runs(RunsFilter(tags={NODE_TAG: node}))}

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
        kill_node(self.homes[node], node)


def files_of_runs(home: Path, runs: set[str]) -> list[Path]:
    """Return the files of runs that Dagster keeps in a home's folder."""
    return [path for path in Settings(home=home).dagster_home.rglob("*") if path.name in runs]
