"""This release, and the rule of which releases may share a database.

A database carries two revisions: the one that its tables have, and the oldest one whose releases
may use them. A revision that only adds (a table, an index, a column whose default says what held
before) leaves the second as it is: releases that do not know it go on, beside those that do, and
nodes are upgraded one by one. Every other revision raises it, and releases before it are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from dagster_leasehold.lease_store.errors import SchemaTooNew, SchemaTooOld

DISTRIBUTION = "dagster-leasehold"
REVISIONS = tuple(f"{number:04}" for number in range(1, 24))
HEAD = REVISIONS[-1]
OLDEST = "0020"
"""The last revision that releases before it cannot live with: what they commit is in no count of
rows, those without tables commit what no publisher looks for, and those before it know no pending
publication. Who adds a revision that does more than add names it here."""


def _installed() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""


RELEASE = _installed()


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """The schema of a database, in its own words.

    Attributes:
        revision: of its tables; None where it has no lease tables yet.
        oldest: the oldest revision whose releases may use them; None before revision 0016, and
            where another release may not.
    """

    revision: str | None
    oldest: str | None = None

    @property
    def newer(self) -> bool:
        """True if a newer release has upgraded it, or is about to."""
        unknown = self.revision is not None and self.revision not in REVISIONS
        return unknown or (self.oldest or "") > HEAD

    def check(self, place: str) -> None:
        """Refuse a schema that this release cannot use.

        Args:
            place: the database, for the sentence.

        Raises:
            SchemaTooNew: a newer release has upgraded it, or is about to.
            SchemaTooOld: it was not upgraded yet.
        """
        oldest = self.oldest or (self.revision if self.newer else None)
        if oldest is not None and oldest > HEAD:
            raise SchemaTooNew(
                f"The lease store at {place} has schema {self.revision}, for releases that know "
                f"schema {oldest}; this release's newest is {HEAD}: install the newer release of "
                "Leasehold."
            )
        if self.newer or self.revision == HEAD:
            return
        has = f"has schema {self.revision}" if self.revision else "has no lease tables yet"
        raise SchemaTooOld(
            f"The lease store at {place} {has}, this release needs schema {HEAD}: run "
            "`leasehold db upgrade` with an account that may create tables."
        )
