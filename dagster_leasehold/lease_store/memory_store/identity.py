"""The identity of a store in memory."""

from __future__ import annotations

from uuid import uuid4

from typing_extensions import override

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.memory_store.rows import MemoryRows
from dagster_leasehold.lease_store.roles.identity import Identity, StoreIdentity


class MemoryIdentity(MemoryRows, Identity):
    """The verb on the store itself."""

    _identity: str = ""

    @override
    def identity(self) -> StoreIdentity:
        with self._verb("identity"):
            self._identity = self._identity or str(uuid4())
            return StoreIdentity(self._identity)

    @override
    def log_of_group(self, key: GroupKey, identity: str, *, instead: bool = False) -> str:
        with self._rows("log_of_group", key) as rows:
            if instead or not rows.log:
                rows.log = identity
            return rows.log
