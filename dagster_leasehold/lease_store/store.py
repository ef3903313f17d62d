"""The lease store: one conditional write per verb, with a typed outcome.

The operations stand in `lease_store.roles`. `lease_store.sql_store` runs them on SQLite, MariaDB
and MySQL, `lease_store.memory_store` on dictionaries; one conformance suite runs on all of them.

Every method can raise `StoreUnavailable` (nothing changed), `StoreReadOnly` (nothing changed) or
`OutcomeUnknown` (the reply was lost and a re-read did not settle it), and `UnknownGroup` where
the group does not exist. An outcome is returned, an error is raised: losing a race is an outcome.
"""

from __future__ import annotations

from collections import Counter

from dagster_leasehold.lease_store.roles.groups import Groups
from dagster_leasehold.lease_store.roles.identity import Identity
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.roles.nodes import Nodes
from dagster_leasehold.lease_store.roles.outbox import Outbox
from dagster_leasehold.lease_store.roles.publications import Publications
from dagster_leasehold.lease_store.roles.retention import Retention
from dagster_leasehold.lease_store.roles.rewrites import Rewrites
from dagster_leasehold.lease_store.roles.shards import Shards
from dagster_leasehold.lease_store.roles.tenures import Tenures
from dagster_leasehold.lease_store.roles.windows import Windows


class GroupsAndNodes(Groups, Nodes):
    """The roles that a caller needs to join a group and stay in it."""


class GroupsAndShards(Groups, Shards):
    """The roles that a caller needs to bring a shard list into a group."""


class GroupsAndLedger(Groups, Ledger):
    """The roles that a caller needs to show, weigh or prove what became of a group."""


class GroupsAndRetention(Groups, Retention):
    """The roles that a caller needs to delete the old history of a group."""


class LedgerAndRewrites(Identity, Ledger, Rewrites, Publications):
    """The roles that a caller needs to replace committed output with other files."""


class LeaseStore(
    GroupsAndNodes,
    GroupsAndShards,
    GroupsAndLedger,
    GroupsAndRetention,
    LedgerAndRewrites,
    Tenures,
    Windows,
    Outbox,
):
    """The lease store of a deployment: all roles together.

    Attributes:
        statements: how often each kind of statement was sent since the store was opened: `pulse`,
            `beat`, `progress`, `claim` and so on; the model in memory counts its verbs.
    """

    statements: Counter[str]

    def close(self) -> None:
        """Let go of all connections; the store opens new ones when it is used again."""
        ...
