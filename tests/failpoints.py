"""The names of all failpoints, and the step that each interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from enum import Enum
from pathlib import Path

from dagster_leasehold.lease_store.failpoints import ENVIRONMENT_VARIABLE

ROOT = Path(__file__).parents[1]


class Failpoint(Enum):
    """A step that a test can interrupt: its number, and what has and has not happened before it.

    A failpoint named `IN_...` is within a transaction of the lease store: its statements were sent,
    and its COMMIT was not.
    """

    IN_SYNC_SHARDS = 1, "the shard list is being written to the lease tables"
    BEFORE_PARTITIONS = 2, "the lease tables have new shards, Dagster has no partitions for them"
    IN_REGISTER = 3, "a node joins its group"
    AFTER_BEAT = 4, "the nodes' beats were sent, nothing is planned yet"
    IN_EVICT = 5, "a node that was judged dead is being evicted"
    AFTER_PLAN = 6, "a plan is made, nothing of it is carried out"
    IN_CLAIM = 7, "free shards are being claimed"
    AFTER_CLAIM = 8, "shards are claimed, no run was launched for them"
    IN_BEGIN_TRANSFER = 9, "a transfer is being started"
    IN_COMPLETE_TRANSFER = 10, "a shard is being taken over whose holder missed the deadline"
    DURING_BURIAL = 11, "a dead run's tenure was replaced, and the new one is open"
    BEFORE_LAUNCH = 12, "runs are chosen, Dagster does not know of them"
    IN_OPEN_TENURE = 13, "a run is opening a shard"
    AFTER_OPEN = 14, "a run's tenures are open, nothing is planned"
    IN_RECORD_INTENTS = 15, "the next ranges are being recorded"
    AFTER_INTENT = 16, "the ranges are recorded, no Spark job runs"
    DURING_WRITE = 17, "the Spark job has written its first file"
    AFTER_WRITE = 18, "all files are written"
    BEFORE_COMMIT = 19, "the holder has checked its lease for the last time"
    IN_COMMIT = 20, "ledger rows, checkpoints and outbox rows are sent, not committed"
    AFTER_COMMIT = 21, "a batch is committed, nothing is reported"
    BEFORE_GAP = 22, "records are known to be gone, no gap is recorded"
    IN_RECORD_GAP = 23, "a gap and the checkpoint behind it are being written"
    AFTER_GAP = 24, "a gap is recorded, the shard has not continued"
    BEFORE_CLOSE = 25, "a run is done, its tenures are open"
    IN_CLOSE_TENURE = 26, "a run is releasing a shard"
    AFTER_CLOSE = 27, "all shards are released, the run has not ended"
    BEFORE_REPORT = 28, "a run has read its outbox rows, Dagster has no materialization"
    AFTER_REPORT = 29, "Dagster has the materializations, the outbox rows are not flagged"
    IN_MARK_DELIVERED = 30, "outbox rows are being flagged"
    BEFORE_EMIT = 31, "the step `outbox` has read what a dead run left, nothing is emitted"
    AFTER_REWRITE_CLAIM = 32, "a replay or compaction has its claim, no file is written"
    BEFORE_SWAP = 33, "the new files are written, the ledger names the old ones"
    IN_REWRITE_BATCHES = 34, "the ledger's files are being swapped"
    AFTER_SWAP = 35, "the ledger names the new files, the claim is not released"
    BEFORE_VACUUM = 36, "vacuum knows what it can remove, nothing is removed"
    DURING_VACUUM = 37, "vacuum has removed its first file"
    BEFORE_EXPIRY = 38, "the files of output that expires look new, the ledger names them"
    IN_EXPIRE_BATCHES = 39, "ledger rows of output that expires are being deleted"
    WHILE_WAITING = 40, "a run that follows its shards waits for records"
    AFTER_PUBLISH_LOCK = 41, "a publisher has the lock, nothing is staged"
    BEFORE_TABLE = 42, "the first metadata of a table is written, no catalog names it"
    AFTER_STAGE = 43, "the manifests of a snapshot are written, no metadata names them"
    BEFORE_PUBLISH = 44, "a publication is staged, the catalog has not been asked to take it"
    IN_COMMIT_PUBLICATION = 45, "pointer, cursors and changes are sent, not committed"
    AFTER_PUBLISH = 46, "a publication is in the table, nothing is reported"
    AFTER_TABLE = 47, "the catalog has assigned a location, nothing is written there"
    AFTER_HOLD = 48, "a failed batch holds its shard, batches before it are not published"
    BEFORE_QUARANTINE = 49, "a batch is written without failed records, the ledger names the old"
    IN_HOLD_PUBLICATION = 50, "holds of shards are being written"
    IN_REWRITE_UNPUBLISHED = 51, "the ledger's files of a checked batch are being swapped"
    AFTER_ROUTE = 52, "a route's table shows a publication, other routes' tables do not"
    BEFORE_RENAME = 53, "another catalog has the moved table, the lease database its former name"

    def __init__(self, number: int, interrupts: str) -> None:
        self.number = number
        self.interrupts = interrupts

    @property
    def label(self) -> str:
        """Its name where it is armed: `after_commit`."""
        return self.name.lower()

    def kills(self, *arguments: object) -> None:
        """Run a Python program with these arguments, which must die at this step."""
        killed = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, ENVIRONMENT_VARIABLE: self.label},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
