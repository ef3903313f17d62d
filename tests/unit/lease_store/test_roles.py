"""The roles of the lease store: each verb has one, and both stores carry all of them out."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from types import FunctionType

import pytest

from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.roles.forced_checkpoints import ForcedCheckpoints
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
from dagster_leasehold.lease_store.sql_store import SqlStore
from dagster_leasehold.lease_store.store import LeaseStore

ROLES = (
    Identity, Groups, Shards, Tenures, Ledger, Rewrites, Publications, PublicationHolds, Windows,
    Outbox, Retention, ForcedCheckpoints,
)  # fmt: skip
OF_THE_WHOLE_STORE = {"close"}


def verbs(protocol: type) -> set[str]:
    """The public methods that a class declares itself."""
    return {
        name
        for name, value in vars(protocol).items()
        if isinstance(value, FunctionType) and not name.startswith("_")
    }


def all_verbs(store: type) -> set[str]:
    return set().union(*(verbs(each) for each in store.__mro__))


def is_empty(verb: FunctionType) -> bool:
    """True if a verb has no body but its docstring and an ellipsis."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(verb))).body
    assert isinstance(function, ast.FunctionDef)
    last = function.body[-1]
    return (
        isinstance(last, ast.Expr)
        and isinstance(last.value, ast.Constant)
        and last.value.value is ...
    )


def test_every_operation_belongs_to_exactly_one_role() -> None:
    count = Counter(verb for role in ROLES for verb in verbs(role))
    assert [verb for verb, roles in count.items() if roles > 1] == []
    assert all_verbs(LeaseStore) == set(count) | OF_THE_WHOLE_STORE
    assert len(count) > 40


@pytest.mark.parametrize("store", [MemoryStore, SqlStore])
def test_a_store_implements_every_operation_of_every_role(store: type) -> None:
    """Goal: no verb falls through to a role's own empty body, which would return None."""
    left_out = [verb for verb in all_verbs(LeaseStore) if is_empty(getattr(store, verb))]
    assert left_out == []


def test_the_check_finds_an_empty_operation() -> None:
    def nothing() -> None: ...

    assert is_empty(nothing)
    assert not is_empty(MemoryStore.snapshot)


@pytest.mark.parametrize("store", [MemoryStore, SqlStore])
def test_a_store_has_no_operation_without_a_role(store: type) -> None:
    """Goal: code that receives a store can do only what a role allows."""
    own = {"backup", "restore", "schema_revision", "upgrade"}
    assert all_verbs(store) - all_verbs(LeaseStore) - own == set()
