"""Which incidents can happen at the same time."""

from __future__ import annotations

from lease_store.failpoints import Failpoint
from tests.chaos.incidents import AtFailpoint, DatabaseFreezes, DatabaseStops, compatible


def test_a_failpoint_is_for_one_incident_at_a_time() -> None:
    """Both write the same file: one of the two would never happen."""
    freeze = AtFailpoint(Failpoint.DURING_WRITE, freeze=True)
    assert not compatible(AtFailpoint(Failpoint.DURING_WRITE), [freeze])
    assert compatible(AtFailpoint(Failpoint.AFTER_WRITE), [freeze])


def test_the_database_has_one_trouble_at_a_time() -> None:
    assert not compatible(DatabaseFreezes(), [DatabaseStops(crash=True)])
    assert compatible(DatabaseFreezes(), [AtFailpoint(Failpoint.AFTER_WRITE)])
