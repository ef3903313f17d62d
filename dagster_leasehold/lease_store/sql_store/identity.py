"""The identity of a store in SQL: one row, made by whoever asks first."""

from __future__ import annotations

from uuid import uuid4

from typing_extensions import override

from dagster_leasehold.lease_store.engine import sqlite_path
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.identity import Identity, StoreIdentity
from dagster_leasehold.lease_store.sql_store.group_statements import (
    rows_of,
    select_identity,
    update_rows,
)
from dagster_leasehold.lease_store.sql_store.mapping import key_values
from dagster_leasehold.lease_store.sql_store.verbs import SqlVerbs
from dagster_leasehold.lease_store.tables import log_identity, store_identity
from dagster_leasehold.lease_store.transactions import Transaction

_ONLY_ROW = 1


class SqlIdentity(SqlVerbs, Identity):
    """The verb on the store itself."""

    _identity: StoreIdentity | None = None

    @override
    def identity(self) -> StoreIdentity:
        if self._identity is None:
            id_ = self._read("identity", _stored) or self._write("new_identity", self._made)
            path = sqlite_path(self._transactions.engine.url)
            self._identity = StoreIdentity(id_, path and path.resolve())
        return self._identity

    @override
    def log_of_group(self, key: GroupKey, identity: str, *, instead: bool = False) -> str:
        def stored(tx: Transaction) -> str | None:
            return tx.value(rows_of(log_identity, key).with_only_columns(log_identity.c.identity))

        def work(tx: Transaction) -> str:
            self._group(tx, key)
            before = stored(tx)
            if before is None:
                self._add_row(tx, log_identity, key_values(key) | {"identity": identity})
            elif instead and before != identity:
                tx.connection.execute(update_rows(log_identity, key, {"identity": identity}))
            else:
                return tx.abandon(before)
            return identity

        if not instead and (before := self._read("log_of_group", stored)) is not None:
            return before
        # A lost reply does no harm: the next look finds what was written.
        return self._write("new_log_of_group", work)

    def _made(self, tx: Transaction) -> str:
        id_ = _stored(tx)
        if id_ is None:
            id_ = str(uuid4())
            # A lost reply does no harm: the next look finds the row, whoever made it.
            self._add_row(tx, store_identity, {"number": _ONLY_ROW, "identity": id_})
        return id_


def _stored(tx: Transaction) -> str | None:
    return tx.value(select_identity())
