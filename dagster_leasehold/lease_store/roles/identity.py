"""The role for whoever shares a folder, a table or a topic with others: which store this is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dagster_leasehold.lease_store.identifiers import GroupKey


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The identity of a lease store.

    Attributes:
        id: made once, at its first use; backups and copies of the store have the same.
        file: the file of an embedded store, by its real path; None for a database server.
    """

    id: str
    file: Path | None = None


class Identity(Protocol):
    """The verbs that tell lease stores apart, and logs of one name."""

    def identity(self) -> StoreIdentity:
        """Return the identity of this store; it is made at the first call."""
        ...

    def log_of_group(self, key: GroupKey, identity: str, *, instead: bool = False) -> str:
        """Return the identity of the log that a group's cursors belong to.

        Args:
            key: the group.
            identity: of its stream's log; it becomes the group's if that has none yet.
            instead: it becomes the group's in any case.
        """
        ...
