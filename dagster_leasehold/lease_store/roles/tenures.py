"""The role for holders: consuming a shard under a tenure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, Intent
from dagster_leasehold.lease_store.outcomes import (
    Changed,
    NotHeld,
    OpenByOther,
    Opened,
    Stale,
    TenureView,
)
from dagster_leasehold.lease_store.rules.isolation import Suspicion
from dagster_leasehold.lease_store.shard_rows import Tenure


class Tenures(Protocol):
    """The verbs of a shard's holder."""

    def open_tenure(
        self, key: GroupKey, shard: ShardId, node: NodeName, run: str, replaces: str | None = None
    ) -> Opened | OpenByOther | NotHeld:
        """Begin a tenure: epoch + 1, `consumer_run` := run, in one compare-and-set.

        `replaces` names a run that the caller knows to have ended; its tenure is closed.
        """
        ...

    def open_tenures(
        self,
        key: GroupKey,
        shards: Sequence[ShardId],
        node: NodeName,
        run: str,
        *,
        replaces: Mapping[ShardId, str],
    ) -> dict[ShardId, Opened | OpenByOther | NotHeld]:
        """Begin tenures of some shards in one transaction; `replaces` is by shard.

        Left out are shards that the group does not have, and those in transfer that the node could
        open: `open_tenure` raises for the ones, and hands the others over.
        """
        ...

    def review(self, tenures: Sequence[Tenure]) -> dict[ShardId, TenureView]:
        """Return the holders' views before their next batch, in one statement; all of one group."""
        ...

    def announce(self, tenure: Tenure, *, handoff_eta_s: float) -> None:
        """Publish how long the holder needs to its next batch boundary.

        Raises:
            LeaseLost: the tenure is over.
        """
        ...

    def announce_all(self, tenures: Sequence[Tenure], *, handoff_eta_s: float) -> set[ShardId]:
        """Publish it for tenures of one group in one transaction; return the shards.

        Left out are shards whose tenure is over and shards in transfer: `announce` raises for the
        ones, and publishes it for the others.
        """
        ...

    def close_tenure(
        self,
        tenure: Tenure,
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> None:
        """End a tenure; a shard in transfer goes to the next node at once (edge 6).

        With `gave_up` its try of the intended range has failed, and `reason` says how. With
        `failed_at` its run failed with the shard at that time, and the row keeps `reason` as the
        shard's last error until the next commit.

        Raises:
            LeaseLost: the tenure is over.
        """
        ...

    def close_tenures(
        self,
        tenures: Sequence[Tenure],
        *,
        reason: str,
        gave_up: bool = False,
        failed_at: datetime | None = None,
    ) -> set[ShardId]:
        """End tenures of one group in one transaction; return the shards that were let go.

        Left out are shards whose tenure is over and shards in transfer: `close_tenure` raises for
        the ones, and hands the others over.
        """
        ...

    def save_checkpoint(self, tenure: Tenure, cursor: str) -> None:
        """Persist a checkpoint without a batch, for clients that keep no ledger.

        Raises:
            CheckpointRefused: it lies before the one that is stored, or has no place among the
                cursors of the shard (`lease_store.rules.cursors`).
            LeaseLost: the tenure is over.
        """
        ...

    def record_intents(self, intents: Sequence[Intent]) -> dict[ShardId, Changed | Stale]:
        """Record the ranges about to be consumed; an equal intent of an earlier tenure is adopted.

        `Stale` for a shard means that its tenure is over.

        Raises:
            IntentConflict: a range is not the next of its shard, or ends before it starts.
            CheckpointRefused: a cursor has no place among those of the shard.
        """
        ...

    def suspect(self, tenure: Tenure, suspicion: Suspicion, *, abandon: bool) -> None:
        """Record what failed tries tell of the records behind the checkpoint, before the next try.

        With `abandon` the intended range is given up with its number: the next one is smaller, and
        no try of it has failed yet.

        Raises:
            LeaseLost: the tenure is over.
        """
        ...

    def commit(self, commits: Sequence[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        """Make batches visible: tenure check, ledger, checkpoint, state, journal, outbox.

        One transaction; a shard whose tenure is over is left out (`Stale`), the others commit.
        `Changed.shards` names the shards that this commit let start (edge 2). Repeating a commit
        that already happened under the same tenure and attempt is `Changed` again.
        """
        ...

    def finish_empty(self, tenure: Tenure, cursor: str) -> Changed | Stale:
        """Finish a read-only shard (edge 8) that has nothing left to read at `cursor`."""
        ...

    def record_gap(
        self, tenure: Tenure, *, start: str, end: str, reason: str, skip: bool = True
    ) -> None:
        """Record records that cannot be consumed, and with `skip` move the checkpoint past them.

        Without `skip` nothing moves: the shard holds at `start` until the gap is acknowledged.
        A range that already holds there grows to the new end.

        Raises:
            LeaseLost: the tenure is over.
            CheckpointRefused: the gap does not begin at the checkpoint, or does not lead onwards.
        """
        ...
