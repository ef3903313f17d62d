"""Three hosts whose wall clocks are hours apart and step share shards: nothing goes by a clock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.verification import verify
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.leasehold_process import environment
from tests.wall_clocks import WallClock, wall_clock_library

pytestmark = [pytest.mark.release, pytest.mark.mariadb]

KEY = GroupKey.parse("readers", "events")
NODES = ("a", "b", "c")
SHARDS, RECORDS, BEATS = 6, 20, 8
TIMEOUT_S, DEADLINE_S = 5.0, 60.0
PROGRAM = """
import sys
import threading
from datetime import datetime
from pathlib import Path
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.client import GroupMember, ProcessorWorker
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.record_feed import SourceFeed

url, log, name, notes = sys.argv[1:]


class Notes:
    def initialize(self, shard, cursor): ...

    def process(self, records):
        with Path(notes).open("a") as file:
            for record in records:
                file.write(f"{record.shard} {record.cursor} {datetime.now():%s}\\n")

    def shutdown(self): ...


member = GroupMember(
    open_store(url), GroupKey.parse("readers", "events"), NodeName(name), incarnation=f"{name}-1"
)
worker = ProcessorWorker(
    member, SourceFeed(LocalLog(Path(log))), lambda _: Notes(), records_max=3, idle_s=0.05
)
stopping = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
worker.run(stopping)
"""


def wait_until(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert all(process.poll() is None for process in processes)
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.05)


def test_three_workers_whose_clocks_step_by_hours_keep_their_shards(
    mariadb_url: str, tmp_path: Path
) -> None:
    clocks = {name: WallClock(wall_clock_library(), tmp_path / f"clock-{name}") for name in NODES}
    notes = {name: tmp_path / f"notes-{name}" for name in NODES}
    log = LocalLog.create(tmp_path / "log", SHARDS)
    store = open_store(mariadb_url, upgrade=True)
    store.create_group(Group(KEY, timeout_s=TIMEOUT_S))
    store.sync_shards(KEY, log.list_shards(), observer="test")

    def set_clocks(*minutes: int) -> None:
        for name, each in zip(NODES, minutes, strict=True):
            clocks[name].step(minutes=each)

    def append() -> None:
        for shard in range(SHARDS):
            log.append(str(shard), [b"record"] * RECORDS)

    def seen() -> list[tuple[str, str]]:
        lines = [line for path in notes.values() if path.exists() for line in path.open()]
        return [(shard, cursor) for shard, cursor, _ in map(str.split, lines)]

    def holders() -> list[str]:
        return sorted(str(row.consumer_owner) for row in store.snapshot(KEY).shards)

    def beats() -> dict[str, int]:
        return {str(node.name): node.lease_id for node in store.pulse(KEY).nodes}

    set_clocks(0, 60, -60)
    append()
    with ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        for name in NODES:
            words = [mariadb_url, str(log.root), name, str(notes[name])]
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *words],
                stdin=subprocess.PIPE,
                text=True,
                env=environment() | clocks[name].variables,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        shared = sorted(NODES * (SHARDS // len(NODES)))
        wait_until(lambda: holders() == shared and len(seen()) == SHARDS * RECORDS, *processes)
        at = store.journal(KEY)[-1].sequence
        for turn, minutes in enumerate(((90, -60, 60), (-90, 120, -600), (0, 0, 0)), 2):
            set_clocks(*minutes)
            before = beats()
            append()
            wait_until(
                lambda before=before, turn=turn: (
                    len(seen()) == turn * SHARDS * RECORDS
                    and all(now >= before[name] + BEATS for name, now in beats().items())
                ),
                *processes,
            )
            assert holders() == shared
        # What arrived last may still have been about to be opened.
        kinds = {entry.kind for entry in store.journal(KEY, after=at)}
        assert kinds <= {"open"}, "nothing moved"
        for process in processes:
            process.communicate("", timeout=DEADLINE_S)
    hours = {line.split()[2] for path in notes.values() for line in path.open()}
    assert max(map(int, hours)) - min(map(int, hours)) > 10 * 3_600, "clocks were apart"
    assert len(set(seen())) == len(seen()) == 4 * SHARDS * RECORDS
    assert verify(store, KEY) == []
    store.close()
