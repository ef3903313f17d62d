"""The role for whoever shares a folder, a table or a topic with others: which store this is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


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
    """The verb that tells lease stores apart."""

    def identity(self) -> StoreIdentity:
        """Return the identity of this store; it is made at the first call."""
        ...
