"""A process that freezes within a transaction: the server soon undoes it and frees its rows.

Method: a separate process claims a shard, and stops itself after it has sent its statements and
before its COMMIT. Others then get the rows after the limit of a silent session, which is shorter
here. Once it continues, the process finds its transaction undone and reports the claim as lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import open_store, transactions
from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.failpoints import ENVIRONMENT_VARIABLE, FOLDER_MARK
from dagster_leasehold.lease_store.outcomes import Changed, Stale
from tests.conformance.world import A, B, World, X
from tests.failpoints import Failpoint
from tests.integration.lease_store.conftest import KEY

pytestmark = pytest.mark.servers("mariadb", "mysql")

ROOT = Path(__file__).parents[3]
LIMIT_S = 2
LOCK_WAITS_S = 10.0
"""How long a claim tries before it reports held rows, with room for a slow machine."""


def test_locks_of_a_frozen_client_are_released(
    world: World, store_url: str, tmp_path: Path
) -> None:
    world.group()
    world.join(A, B)
    world.add(X)
    point = Failpoint.IN_CLAIM.label
    (tmp_path / point).write_text("STOP")
    client = subprocess.Popen(
        [sys.executable, "-m", __name__, store_url],
        env={**os.environ, ENVIRONMENT_VARIABLE: f"{FOLDER_MARK}{tmp_path}"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _, status = os.waitpid(client.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert {path.name for path in tmp_path.iterdir()} == {f"{point}.{client.pid}"}
        frozen = time.monotonic()
        outcome = None
        while outcome is None and time.monotonic() - frozen < LIMIT_S + LOCK_WAITS_S:
            try:
                outcome = world.store.claim(world.key, {X: (B, 0)}, observer="t", reason="r")
            except StoreUnavailable:
                continue
        assert outcome == {X: Changed((X,))}
        assert world.edges(X) == [1, 3]
        os.kill(client.pid, signal.SIGCONT)
        answer, _ = client.communicate(timeout=60)
        assert answer.strip() == Stale.__name__
        assert world.shard(X).lease_owner == B
    finally:
        client.kill()
        client.wait()


def claim(url: str) -> None:
    """Claim the shard for node A in a separate process."""
    transactions.IDLE_TRANSACTION_S = LIMIT_S
    store = open_store(url)
    store.groups()  # a connection that was in use before is limited like a new one
    outcome = store.claim(KEY, {X: (A, 0)}, observer="t", reason="r")[X]
    print(type(outcome).__name__)  # noqa: T201


if __name__ == "__main__":
    claim(sys.argv[1])
