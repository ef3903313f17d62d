"""The schema revision of this release, and the check that a database fits it.

A database stores two revisions: the revision of its tables, and the oldest revision whose releases
can still use them. An upgrade that only adds (a table, an index, a column with a default) keeps the
second one, so nodes can be upgraded one by one. Any other upgrade increases it, so that older
releases are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from dagster_leasehold.lease_store.errors import SchemaTooNew, SchemaTooOld

DISTRIBUTION = "dagster-leasehold"
REVISIONS = ("0100",)
"""Databases of versions before 0.2.0 have lower revisions, and cannot be upgraded."""
HEAD = REVISIONS[-1]
OLDEST = "0100"
"""The newest revision that does more than add to the schema; older releases cannot use it."""


def _installed() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""


RELEASE = _installed()


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """The schema of a database.

    Attributes:
        revision: the revision of its tables; None if it has no lease tables yet.
        oldest: the oldest revision whose releases can use the tables; None without tables.
    """

    revision: str | None
    oldest: str | None = None

    @property
    def newer(self) -> bool:
        """True if a newer release has upgraded the database, or has started to."""
        return max(self.revision or "", self.oldest or "") > HEAD

    @property
    def unsupported(self) -> bool:
        """True if a version before 0.2.0 created the database."""
        return self.revision is not None and self.revision < REVISIONS[0]

    def check(self, place: str) -> None:
        """Refuse a schema that this release cannot use; `place` names the database in the error.

        Raises:
            SchemaTooNew: a newer release has upgraded the database, or has started to.
            SchemaTooOld: the database was not upgraded yet.
        """
        oldest = self.oldest or (self.revision if self.newer else None)
        if oldest is not None and oldest > HEAD:
            raise SchemaTooNew(
                f"The lease store at {place} has schema {self.revision}, for releases with schema "
                f"{oldest} or later; this release has schema {HEAD}: install the newer release of "
                "Leasehold."
            )
        if self.newer or self.revision == HEAD:
            return
        if self.unsupported:
            raise SchemaTooOld(
                f"A version before 0.2.0 created the lease store at {place} (schema "
                f"{self.revision}), which cannot be upgraded: use a new database."
            )
        has = f"has schema {self.revision}" if self.revision else "has no lease tables yet"
        raise SchemaTooOld(
            f"The lease store at {place} {has}, this release needs schema {HEAD}: run "
            "`leasehold db upgrade` with an account that can create tables."
        )
