"""Kill a replay or a compaction at every step: readers see all old or all new, and go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from assets.committed_output import committed_paths, iter_records
from assets.compaction import Compactor
from assets.failpoints import ENVIRONMENT_VARIABLE
from assets.replay import Replayer
from assets.replay_span import ReplaySpan
from assets.vacuum import vacuum
from lease_store.identifiers import ShardId
from lease_store.verification import verify
from tests.integration.assets.runs import PROJECT
from tests.unit.orchestration.consumed_home import KEY, ConsumedHome

SHARD = ShardId("0")
BATCHES = 5
RECORDS = 20
POINTS = ("after_rewrite_claim", "before_swap", "after_swap")


def rewrite(home: ConsumedHome, how: str, run: str, ended: str = "") -> str:
    """One replay or compaction of the only shard; its error."""
    if how == "replay":
        replayer = Replayer(
            stream=home.stream,
            store=home.store,
            output_root=home.output,
            sweeper=home.sweeper,
            run=run,
            ended=lambda other: other == ended,
        )
        return replayer.replay([SHARD], ReplaySpan())[SHARD].error
    compactor = Compactor(
        store=home.store,
        key=KEY,
        output_root=home.output,
        run=run,
        new_attempt=lambda: f"{run}-1",
        ended=lambda other: other == ended,
    )
    return compactor.compact([SHARD])[SHARD].error


def check(home: ConsumedHome, generation: int) -> None:
    batches = home.store.batches(KEY, SHARD)
    assert [batch.generation for batch in batches] == [generation] * BATCHES
    rows = [
        value
        for part in iter_records(home.store, KEY, home.output, SHARD)
        for value in part.column("value").to_pylist()
    ]
    assert rows == [b"0:%d" % number for number in range(RECORDS)]
    assert verify(home.store, KEY) == []


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", ["replay", "compact"])
def test_all_old_or_all_new(tmp_path: Path, how: str, point: str) -> None:
    """Method: SIGKILL at a named step; look; repeat with the dead run's name; remove the rest."""
    home = ConsumedHome(tmp_path / "home", shards=1)
    home.append(RECORDS)
    home.consume("run-1")
    killed = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path / "home"), how],
        env={**os.environ, ENVIRONMENT_VARIABLE: point},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    swapped = int(point == "after_swap")
    check(home, swapped)
    assert "Run killed is" in rewrite(home, how, "second"), "nobody knows that it has ended"
    assert rewrite(home, how, "third", ended="killed") == ""
    check(home, 1 if how == "compact" else 1 + swapped)
    assert home.store.rewrites(KEY) == []
    then = time.time() - 7_200
    for path in home.output.rglob("*"):
        os.utime(path, (then, then))
    vacuum(home.store, KEY, home.output, older_than=timedelta(hours=1))
    left = {str(path) for path in home.output.rglob("*") if path.is_file()}
    assert left == set(committed_paths(home.store, KEY, home.output))
    check(home, 1 if how == "compact" else 1 + swapped)
    home.store.close()


if __name__ == "__main__":
    rewrite(ConsumedHome(Path(sys.argv[1])), sys.argv[2], "killed")
