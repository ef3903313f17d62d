"""Kill a rewrite, a vacuum or an expiry at every step: readers see all or nothing of it."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from dagster_leasehold.assets.output.attempts import touch_replaced
from dagster_leasehold.assets.output.folder_owner import MARK
from dagster_leasehold.assets.rewriting.compaction import Compactor
from dagster_leasehold.assets.rewriting.continued_compaction import ContinuedCompaction
from dagster_leasehold.assets.rewriting.replay import Replayer
from dagster_leasehold.assets.rewriting.replay_span import ReplaySpan
from dagster_leasehold.assets.rewriting.vacuum import vacuum
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.pruning import OutputExpiry, expire
from dagster_leasehold.lease_store.rules.verification import verify
from tests.failpoints import Failpoint
from tests.ledger_output import ledger_paths, ledger_records
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

pytestmark = pytest.mark.long

SHARD = ShardId("0")
BATCHES = 5
RECORDS = 20
POINTS = (
    Failpoint.AFTER_REWRITE_CLAIM,
    Failpoint.BEFORE_SWAP,
    Failpoint.IN_REWRITE_BATCHES,
    Failpoint.AFTER_SWAP,
)
EXPIRY_POINTS = (Failpoint.BEFORE_EXPIRY, Failpoint.IN_EXPIRE_BATCHES)
VACUUM_POINTS = (Failpoint.BEFORE_VACUUM, Failpoint.DURING_VACUUM)
HOUR = timedelta(hours=1)


def rewrite(home: ConsumedHome, how: str, run: str, ended: str = "") -> str:
    """One replay or compaction of the only shard; its error."""
    if how == "replay":
        replayer = Replayer(
            stream=home.stream,
            store=home.store,
            output_root=home.place,
            sweeper=home.sweeper,
            run=run,
            ended=lambda other: other == ended,
        )
        return replayer.replay([SHARD], ReplaySpan())[SHARD].error
    compactor = Compactor(
        store=home.store,
        key=KEY,
        output_root=home.place,
        run=run,
        new_attempt=lambda: f"{run}-1",
        ended=lambda other: other == ended,
    )
    if how == "compact":
        return compactor.compact([SHARD])[SHARD].error
    continued = ContinuedCompaction(compactor, age=timedelta(0), old_until={}, stopped=lambda _: "")
    return continued.compact([SHARD]).reports[SHARD].error


def check(home: ConsumedHome, generation: int) -> None:
    batches = home.store.batches(KEY, SHARD)
    assert [batch.generation for batch in batches] == [generation] * BATCHES
    rows = [
        value
        for part in ledger_records(home.store, KEY, home.place, SHARD)
        for value in part.column("value").to_pylist()
    ]
    assert rows == [b"0:%d" % number for number in range(RECORDS)]
    assert verify(home.store, KEY) == []


def kill_at(point: Failpoint, home: Path, how: str) -> None:
    """Run the work in a separate process, which dies at that failpoint."""
    point.kills("-m", __name__, str(home), how)


def age(home: ConsumedHome) -> None:
    """Make everything written so far old enough for vacuum."""
    then = time.time() - 2 * HOUR.total_seconds()
    for path in home.output.rglob("*"):
        os.utime(path, (then, then))


def files(home: ConsumedHome) -> set[str]:
    paths = (path for path in home.output.rglob("*") if path.name != MARK)
    return {str(path) for path in paths if path.is_file()}


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
@pytest.mark.parametrize("how", ["replay", "compact", "continue"])
def test_a_killed_rewrite_shows_all_old_or_all_new_output(
    tmp_path: Path, how: str, point: Failpoint
) -> None:
    """Method: SIGKILL at a named step; check; repeat with the dead run's name; remove the
    leftovers.
    """
    home = ConsumedHome(tmp_path / "home", shards=1)
    home.append(RECORDS)
    home.consume("run-1")
    kill_at(point, tmp_path / "home", how)
    swapped = int(point is Failpoint.AFTER_SWAP)
    check(home, swapped)
    assert "Run killed is" in rewrite(home, how, "second"), "nobody knows that it has ended"
    assert rewrite(home, how, "third", ended="killed") == ""
    check(home, 1 + swapped if how == "replay" else 1)
    assert home.store.rewrites(KEY) == []
    age(home)
    vacuum(home.store, KEY, home.place, older_than=HOUR)
    assert files(home) == set(ledger_paths(home.store, KEY, home.place))
    check(home, 1 + swapped if how == "replay" else 1)
    home.store.close()


@pytest.mark.parametrize("point", VACUUM_POINTS, ids=lambda point: point.label)
def test_a_vacuum_that_was_killed_is_repeated(tmp_path: Path, point: Failpoint) -> None:
    """Method: two rewrites leave orphans; SIGKILL a vacuum before and after its first removal."""
    home = ConsumedHome(tmp_path / "home", shards=1)
    home.append(RECORDS)
    home.consume("run-1")
    assert rewrite(home, "replay", "second") == ""
    age(home)
    before = files(home)
    kill_at(point, tmp_path / "home", "vacuum")
    assert len(before - files(home)) == int(point is Failpoint.DURING_VACUUM)
    check(home, 1)
    vacuum(home.store, KEY, home.place, older_than=HOUR)
    assert files(home) == set(ledger_paths(home.store, KEY, home.place))
    check(home, 1)
    home.store.close()


def forget(home: ConsumedHome) -> int:
    """Forget all output but the newest batch; the number of ledger rows that went."""
    output = OutputExpiry(timedelta(days=-1), partial(touch_replaced, home.place))
    report = expire(home.store, KEY, output)
    assert report.failures == []
    return report.expired


@pytest.mark.parametrize("point", EXPIRY_POINTS, ids=lambda point: point.label)
def test_a_killed_expiry_is_repeated(tmp_path: Path, point: Failpoint) -> None:
    """Method: SIGKILL before and within its first portion; nothing goes; repeat it; vacuum."""
    home = ConsumedHome(tmp_path / "home", shards=1)
    home.append(RECORDS)
    home.consume("run-1")
    deliver(home)
    age(home)
    kill_at(point, tmp_path / "home", "expire")
    check(home, 0)
    vacuum(home.store, KEY, home.place, older_than=HOUR)
    check(home, 0)
    named = set(ledger_paths(home.store, KEY, home.place))
    assert forget(home) == BATCHES - 1
    vacuum(home.store, KEY, home.place, older_than=HOUR)
    assert files(home) == named, "a reader may have listed them a moment ago"
    age(home)
    vacuum(home.store, KEY, home.place, older_than=HOUR)
    assert files(home) == set(ledger_paths(home.store, KEY, home.place))
    assert len(files(home)) == 1
    assert verify(home.store, KEY) == []
    home.store.close()


def deliver(home: ConsumedHome) -> None:
    events = home.store.pending_events(KEY)
    home.store.mark_delivered(KEY, [event.sequence for event in events])


if __name__ == "__main__":
    its_home = ConsumedHome(Path(sys.argv[1]))
    if sys.argv[2] == "vacuum":
        vacuum(its_home.store, KEY, its_home.place, older_than=HOUR)
    elif sys.argv[2] == "expire":
        forget(its_home)
    else:
        rewrite(its_home, sys.argv[2], "killed")
