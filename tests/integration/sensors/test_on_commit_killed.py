"""Kill the process that calls a hook: the next one calls it again, and loses no batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.assets.commit_hook import CommittedBatch
from dagster_leasehold.assets.deployment import Deployment
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import EventKind
from dagster_leasehold.sensors.on_commit import HookDelivery
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
RECORDS, BATCHES, KILLED_AT = 20, 5, 3


class NotingHook:
    """Appends a line for each call; the call with number `killed_at` is the process's last."""

    def __init__(self, notes: Path, killed_at: int, *, before: bool) -> None:
        self.notes, self.killed_at, self.before = notes, killed_at, before
        self.calls = 0

    def __call__(self, batch: CommittedBatch) -> None:
        self.calls += 1
        last = self.calls == self.killed_at
        if last and self.before:
            os.kill(os.getpid(), signal.SIGKILL)
        with self.notes.open("a") as lines:
            lines.write(json.dumps([batch.shard, batch.batch_id]) + "\n")
        if last:
            os.kill(os.getpid(), signal.SIGKILL)


def delivery(home: ConsumedHome, hook: Callable[[CommittedBatch], None]) -> HookDelivery:
    deployment = Deployment(lambda: home.store, (NODE,), Timing(), lambda key: home.place)
    stream = replace(home.stream, on_commit=hook)
    return HookDelivery(stream, deployment, clock=time.monotonic, jitter=lambda: 0.0)


@pytest.mark.parametrize("before", [True, False], ids=["before its effect", "after its effect"])
def test_every_batch_is_delivered_at_least_once(tmp_path: Path, before: bool) -> None:
    home = ConsumedHome(tmp_path / "home")
    home.stream = replace(home.stream, on_commit=lambda batch: None)
    home.append(RECORDS)
    home.consume("run-1")
    notes = tmp_path / "notes"
    killed = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path / "home"), str(notes), str(int(before))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]

    report = delivery(home, NotingHook(notes, 0, before=False)).tick("")

    assert report.delivered == 2 * BATCHES - (KILLED_AT - 1)
    calls = [tuple(json.loads(line)) for line in notes.read_text().splitlines()]
    repeated = {call for call in calls if calls.count(call) > 1}
    assert len(repeated) == (0 if before else 1)
    for shard in ("0", "1"):
        ledger = [(shard, b.batch_id) for b in home.store.batches(KEY, ShardId(shard))]
        assert list(dict.fromkeys(call for call in calls if call[0] == shard)) == ledger
    assert home.store.waiting_events(KEY, EventKind.HOOK) == []
    home.store.close()


if __name__ == "__main__":
    folder, notes, before = sys.argv[1:]
    opened = ConsumedHome(Path(folder))
    delivery(opened, NotingHook(Path(notes), KILLED_AT, before=before == "1")).tick("")
