"""Candidates for leadership: by a lease, by Redis' SET NX, by ZooKeeper's ephemeral node.

`python -m benchmarks.rivals.candidates WAY NAME TIMEOUT_S PLACE OUTPUT` runs one in a process of
its own, steered by lines: it prints `standby` and `leader`; to `check` it answers whether it
believes that it leads, to `publish` whether its record got through, and at `leave` it resigns.
A publication does not look again whether the candidate leads: the candidate has just done so,
and was stopped in between.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.client import GroupMember
from dagster_leasehold.lease_store.errors import LeaseLost
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.store import LeaseStore

KEY = GroupKey.parse("leaders", "election")
SHARD = ShardId("0")
PATH = "/leader"
POLLS_PER_TIMEOUT = 1 / 0.15


class Candidate(Protocol):
    """One way to be elected."""

    def campaign(self) -> None:
        """Return once elected."""
        ...

    def believes(self) -> bool:
        """Return True if this process takes itself for the leader."""
        ...

    def publish(self, text: str) -> bool:
        """Make a record visible; return True if that was accepted."""
        ...

    def leave(self) -> None:
        """Resign."""
        ...


class LeaseCandidate:
    """A member of a group over a one-shard stream; it publishes under its tenure."""

    def __init__(self, name: str, timeout_s: float, place: str) -> None:
        self._pause_s = timeout_s / POLLS_PER_TIMEOUT
        self._store: LeaseStore = open_store(place)
        incarnation = f"{name}-{time.monotonic_ns()}"
        self._member = GroupMember(self._store, KEY, NodeName(name), incarnation=incarnation)
        self._tenure: Any = None
        self._leaving = threading.Event()
        self._member.register()

    def campaign(self) -> None:
        while True:
            if SHARD in self._member.heartbeat(()):
                opened = self._member.open(SHARD)
                if isinstance(opened, Opened):
                    self._tenure = opened.tenure
                    threading.Thread(target=self._keep, daemon=True).start()
                    return
            time.sleep(self._pause_s)

    def _keep(self) -> None:
        while not self._leaving.wait(self._pause_s):
            self._member.heartbeat((SHARD,))

    def believes(self) -> bool:
        return self._member.holds(SHARD)

    def publish(self, text: str) -> bool:
        # Straight to the store, which decides: the member itself would refuse even earlier.
        try:
            self._store.save_checkpoint(self._tenure, text)
        except LeaseLost:
            return False
        return True

    def leave(self) -> None:
        self._leaving.set()
        self._member.shutdown()


class RedisCandidate:
    """SET NX PX, renewed by the holder; it publishes to a file, which cannot check a lock."""

    def __init__(self, name: str, timeout_s: float, place: str, output: Path) -> None:
        import redis

        self._name, self._output = name, output
        self._pause_s = timeout_s / POLLS_PER_TIMEOUT
        self._timeout_ms = int(timeout_s * 1000)
        self._server: Any = redis.Redis(host="127.0.0.1", port=int(place))
        self._leads = False
        self._leaving = threading.Event()

    def campaign(self) -> None:
        while not self._server.set(PATH, self._name, nx=True, px=self._timeout_ms):
            time.sleep(self._pause_s)
        self._leads = True
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while not self._leaving.wait(self._pause_s):
            if self._server.get(PATH) != self._name.encode():
                self._leads = False
                return
            self._server.pexpire(PATH, self._timeout_ms)

    def believes(self) -> bool:
        return self._leads

    def publish(self, text: str) -> bool:
        return _append(self._output, text)

    def leave(self) -> None:
        self._leaving.set()
        self._server.delete(PATH)


class ZooKeeperCandidate:
    """kazoo's lock, an ephemeral node; it publishes to a file, which cannot check a lock."""

    def __init__(self, name: str, timeout_s: float, place: str, output: Path) -> None:
        from kazoo.client import KazooClient

        self._output = output
        self._client: Any = KazooClient(hosts=f"127.0.0.1:{place}", timeout=timeout_s)
        self._leads = False
        self._client.add_listener(self._state_changed)
        self._client.start()
        self._lock = self._client.Lock(PATH, name)

    def _state_changed(self, state: str) -> None:
        if state != "CONNECTED":
            self._leads = False

    def campaign(self) -> None:
        self._lock.acquire()
        self._leads = True

    def believes(self) -> bool:
        return self._leads

    def publish(self, text: str) -> bool:
        return _append(self._output, text)

    def leave(self) -> None:
        self._lock.release()
        self._client.stop()


def _append(output: Path, text: str) -> bool:
    with output.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return True


def candidate(way: str, name: str, timeout_s: float, place: str, output: Path) -> Candidate:
    """Return a candidate of a way, connected to its server at `place`."""
    if way == "redis":
        return RedisCandidate(name, timeout_s, place, output)
    if way == "zookeeper":
        return ZooKeeperCandidate(name, timeout_s, place, output)
    return LeaseCandidate(name, timeout_s, place)


def main() -> None:
    way, name, timeout_s, place, output = sys.argv[1:]
    elected = candidate(way, name, float(timeout_s), place, Path(output))
    print("standby", flush=True)
    elected.campaign()
    print("leader", flush=True)
    for line in sys.stdin:
        if line == "check\n":
            print(f"believes {elected.believes()}", flush=True)
        elif line == "publish\n":
            print(f"published {elected.publish(name)}", flush=True)
        elif line == "leave\n":
            elected.leave()
            print("left", flush=True)
            return


if __name__ == "__main__":
    main()
