"""One active, many standby: how soon another takes over, and what a frozen leader can still do.

`python -m benchmarks.election [--timeout 2] [--trials 5] [--json]` elects one of two processes
in four ways with the same timeout: a group over a one-shard stream (SQLite, MariaDB), Redis' SET
NX with an expiry, ZooKeeper's ephemeral node. Per way and trial, three times:

* `killed`: from SIGKILL of the leader to the other's election;
* `left`: from the leader's resignation to the other's election;
* `frozen`: the leader finds that it leads, and is stopped (SIGSTOP) before it publishes. The
  other is elected and publishes. The first wakes and goes on. Was its publication accepted?

Polling candidates (leases, Redis) look every 0.15 timeouts. Locks give nothing to the place that
is published to, so there it is a file; a lease's epoch is checked where the record is published.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import print_rows
from benchmarks.rivals.candidates import KEY, SHARD
from benchmarks.rivals.debian_servers import ServerMissing, redis_server, zookeeper_server
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests import mariadb

STEP_TIMEOUT_S = 60.0


class Process:
    """A candidate's process; each line that it prints is stamped when it arrives."""

    def __init__(self, arguments: list[str]) -> None:
        self._lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rivals.candidates", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put((time.monotonic(), line.strip()))

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, expected: str) -> tuple[float, str]:
        """Return the next line, which has to begin as expected, and the time when it came."""
        at, line = self._lines.get(timeout=STEP_TIMEOUT_S)
        if not line.startswith(expected):
            raise RuntimeError(f"a candidate said {line!r} instead of {expected!r}")
        return at, line

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Way:
    """One way of electing, with its server running."""

    def __init__(self, name: str, way: str, fresh_place: Callable[[], str]) -> None:
        self.name = name
        self._way = way
        self._fresh_place = fresh_place

    @contextmanager
    def pair(self, timeout_s: float, folder: Path) -> Generator[tuple[Process, Process]]:
        """Start a leader, and a standby that watches it for a while."""
        place = self._fresh_place()
        output = folder / "published.txt"
        output.unlink(missing_ok=True)
        with ExitStack() as stack:

            def start(name: str) -> Process:
                process = Process([self._way, name, str(timeout_s), place, str(output)])
                stack.callback(process.end)
                process.hear("standby")
                return process

            leader = start("first")
            leader.hear("leader")
            standby = start("second")
            # The fault comes at a random moment between two beats.
            time.sleep(timeout_s * (1 + random.random() / 3))
            yield leader, standby


def killed(way: Way, timeout_s: float, folder: Path) -> float:
    with way.pair(timeout_s, folder) as (leader, standby):
        began = time.monotonic()
        leader.process.send_signal(signal.SIGKILL)
        return standby.hear("leader")[0] - began


def left(way: Way, timeout_s: float, folder: Path) -> float:
    with way.pair(timeout_s, folder) as (leader, standby):
        began = time.monotonic()
        leader.say("leave")
        return standby.hear("leader")[0] - began


def frozen(way: Way, timeout_s: float, folder: Path) -> tuple[float, bool]:
    """Time the standby's election, and have the woken leader try to publish."""
    with way.pair(timeout_s, folder) as (leader, standby):
        leader.say("check")
        if leader.hear("believes")[1] != "believes True":
            raise RuntimeError("the leader does not know that it leads")
        began = time.monotonic()
        os.kill(leader.process.pid, signal.SIGSTOP)
        elected = standby.hear("leader")[0]
        standby.say("publish")
        if standby.hear("published")[1] != "published True":
            raise RuntimeError("the new leader could not publish")
        leader.say("publish")
        os.kill(leader.process.pid, signal.SIGCONT)
        return elected - began, leader.hear("published")[1] == "published True"


def measure(way: Way, timeout_s: float, trials: int, folder: Path) -> dict[str, Any]:
    kills = [killed(way, timeout_s, folder) for _ in range(trials)]
    leaves = [left(way, timeout_s, folder) for _ in range(trials)]
    freezes = [frozen(way, timeout_s, folder) for _ in range(trials)]
    return {
        "way": way.name,
        "killed_median_s": round(statistics.median(kills), 3),
        "killed_max_s": round(max(kills), 3),
        "left_median_s": round(statistics.median(leaves), 3),
        "frozen_median_s": round(statistics.median(seconds for seconds, _ in freezes), 3),
        "stale_published": f"{sum(accepted for _, accepted in freezes)} of {trials}",
    }


def new_group(url: str, timeout_s: float) -> str:
    store = open_store(url, upgrade=True)
    store.create_group(Group(KEY, timeout_s=timeout_s))
    store.sync_shards(KEY, [ShardListing(SHARD)], observer="benchmark")
    store.close()
    return url


@contextmanager
def server_of(way: str, folder: Path, timeout_s: float) -> Generator[Way]:
    """Return a way with its server started in `folder`.

    Raises:
        ServerMissing: the server cannot be had here.
    """
    folder.mkdir()
    numbers = iter(range(1_000_000))
    if way == "sqlite":
        yield Way(
            "lease in SQLite",
            "lease",
            lambda: new_group(f"sqlite:///{folder}/{next(numbers)}.db", timeout_s),
        )
    elif way == "mariadb":
        if not mariadb.available():
            raise ServerMissing("MariaDB's server is not installed")
        with mariadb.running() as server:
            yield Way(
                "lease in MariaDB",
                "lease",
                lambda: new_group(server.create_database(f"election_{next(numbers)}"), timeout_s),
            )
    elif way == "redis":
        with redis_server(folder) as port:
            yield Way("Redis SET NX", "redis", lambda: _emptied_redis(port))
    else:
        with zookeeper_server(folder, tick_ms=int(timeout_s * 250)) as port:
            yield Way("ZooKeeper ephemeral", "zookeeper", lambda: _emptied_zookeeper(port))


def _emptied_redis(port: int) -> str:
    import redis

    client: Any = redis.Redis(host="127.0.0.1", port=port)
    client.flushall()
    return str(port)


def _emptied_zookeeper(port: int) -> str:
    """Wait until the nodes of the trial before are gone, ephemeral ones included."""
    from kazoo.client import KazooClient

    client: Any = KazooClient(hosts=f"127.0.0.1:{port}")
    client.start()
    client.delete("/leader", recursive=True)
    client.stop()
    return str(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=2.0, help="of leases, keys, sessions")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["sqlite", "mariadb", "redis", "zookeeper"])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="leasehold-election-"))
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    try:
        for name in arguments.ways:
            try:
                with server_of(name, folder / name, arguments.timeout) as way:
                    rows.append(measure(way, arguments.timeout, arguments.trials, folder))
            except (ServerMissing, ImportError) as error:
                missing.append(f"{name} is left out: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    note = f"timeout {arguments.timeout} s, {arguments.trials} trials of each; " + "; ".join(
        missing
    )
    print_rows(rows, as_json=arguments.json, note=note.rstrip("; "))


if __name__ == "__main__":
    main()
