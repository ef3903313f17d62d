"""The lease store: all operations together.

`lease_store.roles` has the operations, each written once. `lease_store.sql_store` runs them on
SQLite, MariaDB and MySQL, `lease_store.memory_store` on dictionaries; one conformance suite runs
on all of them.

Every operation can raise `StoreUnavailable` or `StoreReadOnly` (nothing changed), `OutcomeUnknown`
(the reply was lost, and the outcome could not be read), and `UnknownGroup`. A lost race is an
outcome, not an error.
"""

from __future__ import annotations

from collections import Counter

from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.roles.identity import Identity
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.roles.outbox import Outbox
from dagster_leasehold.lease_store.roles.publication_holds import PublicationHolds
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.roles.retention import Retention
from dagster_leasehold.lease_store.roles.rewrites import Rewrites
from dagster_leasehold.lease_store.roles.shards import Shards
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.roles.windows import Windows


class GroupsAndShards(Groups, Shards):
    """Groups and their shard lists."""


class GroupsAndLedger(Groups, Ledger):
    """Groups and their history."""


class GroupsAndRetention(Groups, Retention):
    """Groups and the deletion of their history."""


class LedgerAndRewrites(Identity, Ledger, Rewrites, Publications, PublicationHolds):
    """Committed output and its replacement."""


class LeaseStore(
    GroupsAndShards,
    GroupsAndLedger,
    GroupsAndRetention,
    LedgerAndRewrites,
    Tenures,
    Windows,
    Outbox,
):
    """The lease store of a deployment.

    Attributes:
        statements: the number of sent statements by kind (`pulse`, `beat`, `progress`, `claim`, …)
            since the store was opened; the store in memory counts its operations.
    """

    statements: Counter[str]

    def close(self) -> None:
        """Close all connections; the store opens new ones when it is used again."""
        ...
