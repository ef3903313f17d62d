"""The role for the identities of a store, and of the logs to which its cursors belong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.roles.operations import Operations, Rows
from dagster_leasehold.lease_store.stored_rows import LogIdentity


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The identity of a lease store.

    Attributes:
        id: created on first use; backups and copies of the store share it.
        file: the file of an embedded store, by its real path; None for a database server.
    """

    id: str
    file: Path | None = None


class Identity(Operations):
    """The operations that distinguish lease stores, and logs with the same name."""

    _identity: StoreIdentity | None = None

    def identity(self) -> StoreIdentity:
        """Return the identity of this store; the first call creates it."""
        if self._identity is None:
            id_ = self._reading("identity", None, lambda rows: rows.store_identity())
            # If the reply is lost, the next call reads the row.
            id_ = id_ or self._writing("new_identity", None, _new_identity)
            self._identity = StoreIdentity(id_, self._file())
        return self._identity

    def log_of_group(self, key: GroupKey, identity: str, *, instead: bool = False) -> str:
        """Return the identity of the log that a group's cursors belong to.

        If the group has none, or with `instead`, store `identity`, of the stream's log, first.
        """

        def stored(rows: Rows) -> str | None:
            log = rows.first(LogIdentity)
            return None if log is None else log.identity

        def work(rows: Rows) -> str:
            rows.group()
            before = stored(rows)
            if before is None:
                rows.add(LogIdentity(identity))
            elif instead and before != identity:
                rows.write(LogIdentity(identity))
            else:
                return rows.abandon(before)
            return identity

        if not instead and (before := self._reading("log_of_group", key, stored)) is not None:
            return before
        # If the reply is lost, the next call reads what this one wrote.
        return self._writing("new_log_of_group", key, work)

    def _file(self) -> Path | None:
        return None


def _new_identity(rows: Rows) -> str:
    return rows.store_identity() or rows.add_store_identity(str(uuid4()))
