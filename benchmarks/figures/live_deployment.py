"""A deployment of `leasehold dev` in a folder of its own, and what it has done in some time.

Its process and all below it are measured: Dagster's daemon and webserver, agents, code servers,
runs, Spark and its workers. Leases and Dagster's storage are in SQLite, or in the database server
of `new_home`.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import psutil

from benchmarks.figures.dagster_storage import Stored, stored
from benchmarks.figures.live_records import SHARDS
from benchmarks.figures.process_tree import (
    MEBIBYTE,
    CpuClock,
    adopt_orphans,
    memory_bytes,
    wait_for_orphans,
)
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings, load_settings
from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests import mariadb, mysql
from tests.declared import declare, stream_text
from tests.ports import free_port

KEY = GroupKey.parse("default", "demo")
NODES = 2
PATIENCE_S = 300.0
POLL_S = 1.0
DATABASES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "sqlite": nullcontext,
    "mysql": mysql.running,
    "mariadb": mariadb.running,
}


Publication = tuple[datetime, dict[ShardId, int]]
"""The moment of a publication, and the cursors of the shards after it."""


@contextmanager
def new_home(database: str) -> Generator[tuple[Path, dict[str, str]]]:
    """Yield an empty folder, and the environment variables of a deployment on the database.

    The variables are set, and the database runs, until the block ends. It removes the folder.
    """
    adopt_orphans()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-benchmark-"))
    try:
        with DATABASES[database]() as server:
            variables = server.of_deployment() if server else {}
            with patch.dict(os.environ, variables):
                yield folder, variables
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class Stretch:
    """The work of a stretch of time.

    Attributes:
        seconds: its length.
        cores: in use, of all processes together.
        memory_mib: the proportional sizes of the processes at its end.
        stored: the growth of Dagster's storage.
        files: committed files of records.
        records: committed records.
        ages: of the oldest record of each batch at its commit, in seconds.
        ages_by_shard: the same, of each shard.
        visible_ages: of the oldest record of each batch when the table showed it, in seconds.
    """

    seconds: float
    cores: float
    memory_mib: float
    stored: Stored = field(default_factory=Stored)
    files: int = 0
    records: int = 0
    ages: list[float] = field(default_factory=list[float])
    ages_by_shard: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    visible_ages: list[float] = field(default_factory=list[float])

    def slowest(self) -> list[float]:
        """Return the ages of the shard that has the highest median."""
        return max(self.ages_by_shard.values(), key=statistics.median, default=[])


class LiveDeployment:
    """A deployment of nodes over a log of eight shards, ended with the block.

    Args:
        home: its folder, which does not exist yet.
        interval_s: the stream's commit interval, in seconds; None leaves it to the default.
        idle_limit_s: the time without records after which a run ends; None leaves the default.
        nodes: their number, which divides that of the shards.
        variables: further ones of its environment, such as those of a database server.
        stream: further settings of the stream, as texts of Python.
    """

    def __init__(
        self,
        home: Path,
        *,
        interval_s: float | None,
        idle_limit_s: float | None = None,
        nodes: int = NODES,
        variables: Mapping[str, str] | None = None,
        stream: Mapping[str, str] | None = None,
    ) -> None:
        self._home = home
        self._nodes = nodes
        self._variables = variables or {}
        home.mkdir()
        given = {"commit_interval_s": interval_s, "idle_limit_s": idle_limit_s}
        pace = {name: value for name, value in given.items() if value is not None}
        declare(home, stream_text(KEY.stream, pace=f"Pace(**{pace})", **(stream or {})))
        self.log = LocalLog.create(load_settings(home=home).log_folder(KEY.stream), SHARDS)
        self._process: subprocess.Popen[bytes] | None = None
        self._cpu = CpuClock()
        self._publications: list[Publication] = []

    @property
    def settings(self) -> Settings:
        """The settings of the home, as they are now."""
        return load_settings(home=self._home, agents=True)

    @property
    def process(self) -> psutil.Process:
        """The process of `leasehold dev`."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "dagster_leasehold.orchestration.command_line", "dev"]
        command += [
            "--nodes",
            str(self._nodes),
            "--home",
            str(self._home),
            "--port",
            str(free_port()),
        ]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LEASEHOLD_", "DAGSTER_", "PYTHONDONTWRITEBYTECODE"))
        }
        environment |= self._variables
        with (self._home / "up.log").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._until("the deployment started", lambda: "Open http" in self._output())
        self._until("the nodes shared the shards", self._shared)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                process.kill()
            self._process.kill()
            self._process.wait()

    def balance_by_load(self, *, by_load: bool) -> None:
        """Let the group level records per second, or the number of shards."""
        store = self._store()
        try:
            group = replace(store.snapshot(KEY).group, weighted=by_load)
            store.update_group(group, observer="benchmark")
        finally:
            store.close()

    def shards_of_nodes(self) -> list[list[ShardId]]:
        """Return the shards of each node, the node with the fewest first."""
        store = self._store()
        try:
            rows = store.snapshot(KEY).shards
        finally:
            store.close()
        owners = {row.consumer_owner for row in rows} - {None}
        return sorted(
            ([row.shard for row in rows if row.consumer_owner == owner] for owner in owners),
            key=lambda shards: (len(shards), shards),
        )

    def age_at_commit(self, shard: ShardId, record: bytes) -> float:
        """Append a record, wait until it is committed, and return its age then, in seconds."""
        self.log.append(shard, [record])
        self.catch_up()
        store = self._store()
        try:
            row = next(store.each_batch(KEY, shard, newest_first=True))
        finally:
            store.close()
        appended = row.statistics.first_event_time
        assert row.committed_at is not None
        assert appended is not None
        return (row.committed_at - appended).total_seconds()

    def settle(self) -> None:
        """Wait until everything is committed and no run is at work."""
        self.catch_up()
        self._until("all runs ended", self._without_runs)

    def catch_up(self) -> None:
        """Wait until everything is committed."""
        self._until("all was committed", lambda: self.unread() == 0)

    def measure(self, seconds: float) -> Stretch:
        """Return the work of the next so many seconds."""
        began, before = datetime.now(UTC), stored(self.settings)
        self._cpu.restart()
        began_s = time.monotonic()
        self._publications = []
        store = self._store()
        while (left_s := began_s + seconds - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left_s))
            self._look()
            self._note_publication(store)
        store.close()
        length_s, cores = time.monotonic() - began_s, self._cpu.cores()
        memory = memory_bytes(psutil.Process().children(recursive=True)) / MEBIBYTE
        ended = datetime.now(UTC)
        stretch = Stretch(length_s, cores, memory, stored(self.settings).since(before))
        self._add_batches(stretch, began, ended)
        return stretch

    def unread(self) -> int:
        """Return the number of records that are not committed."""
        shards = [row.shard for row in self.log.list_shards()]
        store = self._store()
        try:
            points = {row.shard: row.check_point for row in store.snapshot(KEY).shards}
        finally:
            store.close()
        bounds = self.log.bounds(shards)
        return sum(int(bounds[shard].end) - int(points[shard] or 0) for shard in shards)

    def _note_publication(self, store: LeaseStore) -> None:
        """Note how far the newest publication came; two between two looks count as the later."""
        newest = store.publication(KEY)
        if newest is not None and newest.at is not None:
            until = store.published_until(KEY) or {}
            if not self._publications or self._publications[-1][0] != newest.at:
                self._publications.append((newest.at, until))

    def _add_batches(self, stretch: Stretch, began: datetime, ended: datetime) -> None:
        store = self._store()
        try:
            rows = list(store.each_batch(KEY))
        finally:
            store.close()
        stretch.visible_ages = visible_ages(rows, self._publications)
        for row in rows:
            if row.committed_at is None or not began <= row.committed_at < ended:
                continue
            first = row.statistics.first_event_time
            stretch.records += row.statistics.records or 0
            # A file that a compaction made stands in the first row of those whose records it has.
            files = sum(not file.quarantine for file in row.files)
            stretch.files += max(1, files) if row.statistics.written else 0
            if first is not None:
                age_s = (row.committed_at - first).total_seconds()
                stretch.ages.append(age_s)
                stretch.ages_by_shard.setdefault(row.shard, []).append(age_s)

    def _store(self) -> LeaseStore:
        return open_store(self.settings.store_url)

    def _look(self) -> None:
        assert self._process is not None
        wait_for_orphans([self._process.pid])
        if self._process.poll() is not None:
            raise RuntimeError(f"the deployment ended: {self._output()[-2000:]}")

    def _output(self) -> str:
        return (self._home / "up.log").read_text("utf-8", errors="replace")

    def _until(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            self._look()
            if time.monotonic() > deadline:
                raise RuntimeError(f"it took longer than {PATIENCE_S:.0f} s until {what}")
            time.sleep(POLL_S)

    def _shared(self) -> bool:
        store = self._store()
        try:
            if KEY not in {group.key for group in store.groups()}:
                return False
            owners = [row.consumer_owner for row in store.snapshot(KEY).shards]
        finally:
            store.close()
        counts = [owners.count(name) for name in set(owners) - {None}]
        return sorted(counts) == [SHARDS // self._nodes] * self._nodes

    def _without_runs(self) -> bool:
        with opened_instance(self.settings) as instance:
            return all(run.is_finished for run in instance.get_runs(limit=20))


def visible_ages(rows: Iterable[Batch], publications: Sequence[Publication]) -> list[float]:
    """Return the ages in seconds of the oldest records of batches when the table showed them.

    The batches of the first publication are left out, since it may have been made long before.
    """
    return [
        (at - first).total_seconds()
        for row in rows
        if (first := row.statistics.first_event_time) is not None
        for (_, before), (at, until) in pairwise(publications)
        if before.get(row.shard, 0) <= row.sequence < until.get(row.shard, 0)
    ]


def row_of(stretch: Stretch, system: str, interval: Any, rate: int, idle: float) -> dict[str, Any]:
    """Return a stretch as the beginning of a row; `idle` cores are what the same takes at rest."""
    hours = stretch.seconds / 3600
    return {
        "system": system,
        "interval s": interval,
        "records/s": rate,
        "minutes": round(stretch.seconds / 60, 1),
        "cores": round(stretch.cores, 3),
        "above idle": round(stretch.cores - idle, 3),
        "memory MiB": round(stretch.memory_mib),
        "committed/s": round(stretch.records / stretch.seconds),
        "files": stretch.files,
        "files/shard/min": round(stretch.files / SHARDS / stretch.seconds * 60, 1),
        "runs/node/h": round(stretch.stored.runs / NODES / hours, 1),
        "events/shard/h": round(stretch.stored.events / SHARDS / hours, 1),
        "naming a shard/h": round(stretch.stored.of_shards / SHARDS / hours, 1),
        "rows/h": round(stretch.stored.rows / hours),
        "bytes/h": round(stretch.stored.bytes / hours),
    }
