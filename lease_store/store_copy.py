"""Moving a lease store into another database: leases, ledger, journal and all.

What is copied must not go on in the old store, or the two would disagree about what is committed.
So every group has to be drained first:

1. A paused group lets nobody open a tenure, and without an open tenure neither its ledger nor a
   checkpoint can change. That it has live members is no harm: they only beat and take ownership.
2. The groups are looked at again when all rows are written, before the copy becomes visible:
   whoever was resumed, opened or forced meanwhile has another epoch, and the copy is undone.
3. Paused they stay in both stores. A process that was left on the old one does nothing there, and
   is no member of the new one: its row there lapses like that of a node that died.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.engine import sqlite_path
from dagster_leasehold.lease_store.errors import CopyRefused
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.open import open_store, open_transactions
from dagster_leasehold.lease_store.rules.verification import Violation, verify
from dagster_leasehold.lease_store.table_copy import check_schema, copy_tables

if TYPE_CHECKING:
    from pydantic import SecretStr
    from sqlalchemy import URL

    from dagster_leasehold.lease_store.store import LeaseStore

STATEMENT_S = 300
"""The seconds that one statement of the copy may take: it reads and counts whole tables."""
MYSQL_PORT = 3306

Epochs = dict[GroupKey, dict[ShardId, tuple[int, str | None]]]


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """The extent of a copy.

    Attributes:
        groups: the groups, by stream and name.
        rows: the number of rows by table.
        violations: what `verify` finds in the copy.
    """

    groups: tuple[GroupKey, ...]
    rows: dict[str, int]
    violations: tuple[Violation, ...]


def copy_store(
    source_url: SecretStr | str,
    target_url: SecretStr | str,
    *,
    report: Callable[[int], None] = lambda _: None,
) -> StoreCopy:
    """Copy a lease store whose groups are drained into an empty one of the same schema.

    Args:
        source_url: of the store as it is; it must exist, and is not changed.
        target_url: of a database that `leasehold db upgrade` has prepared; of any kind.
        report: is called with the number of rows copied so far.

    Raises:
        InvalidSetting: a URL is not of a supported database.
        CopyRefused: both are one store, the target is not empty, the source is, or a group of it
            is not at rest.
        SchemaTooOld, SchemaTooNew: one of them has another schema than this release.
        StoreError: a database refuses or does not answer; nothing was copied.
    """
    source = open_transactions(source_url, statement_s=STATEMENT_S)
    target = open_transactions(target_url, statement_s=STATEMENT_S)
    store, copy = open_store(source_url), open_store(target_url)
    try:
        if _place(source.engine.url) == _place(target.engine.url):
            raise CopyRefused(
                f"The lease store at {target.place} cannot be copied into itself: give the URL of "
                "another database."
            )
        check_schema(source)
        check_schema(target)
        seen = epochs_at_rest(store)
        if not seen:
            raise CopyRefused(
                f"The lease store at {source.place} has no consumer group: there is nothing to "
                "copy; create the groups in the new store."
            )

        def check_unchanged() -> None:
            if epochs_at_rest(store) != seen:
                raise CopyRefused(
                    f"The lease store at {source.place} was changed while it was copied, so "
                    "nothing was: stop its processes, and copy again."
                )

        rows = copy_tables(source, target, before_commit=check_unchanged, report=report)
        violations = tuple(violation for key in seen for violation in verify(copy, key))
        return StoreCopy(tuple(seen), rows, violations)
    finally:
        for transactions in (source, target):
            transactions.engine.dispose()
        store.close()
        copy.close()


def epochs_at_rest(store: LeaseStore) -> Epochs:
    """Return the epoch and checkpoint of every shard of a store that is at rest.

    Raises:
        CopyRefused: a group is not paused, has a shard open, or has its output rewritten.
        StoreError: the store does not answer.
    """
    epochs: Epochs = {}
    for group in store.groups():
        key = group.key
        draining = store.draining(key)
        command = f"`leasehold group drain {key.group} --stream {key.stream}`"
        if not draining.paused:
            raise CopyRefused(f"Group {key} is not paused, so that it goes on: run {command}.")
        if draining.open:
            shard = draining.open[0]
            raise CopyRefused(
                f"Shard {shard.shard} of {key} is open in run {shard.run}: run {command}, which "
                "waits until it is closed."
            )
        for claim in store.rewrites(key):
            raise CopyRefused(
                f"Run {claim.run} is rewriting the output of shard {claim.shard} of {key} "
                f"({claim.kind}): wait until it ends, or repeat that command with "
                f"`--replaces {claim.run}` if it certainly has."
            )
        leases = store.snapshot(key).shards
        epochs[key] = {lease.shard: (lease.consumer_epoch, lease.check_point) for lease in leases}
    return epochs


def _place(url: URL) -> tuple[object, ...]:
    """Return the part that all names of one database share, without accounts and options."""
    path = sqlite_path(url)
    if path is not None:
        return (path.resolve(),)
    return ((url.host or "").lower(), url.port or MYSQL_PORT, url.database)
