"""Which Dagster instance serves a node: the address that the node registers with.

Two deployments may share lease tables, and by mistake name a node the same. The lease tables let
only one of them answer to the name. The other one, which knows nothing of the first one's runs,
must not take them for ended: it compares addresses before it touches a shard of that node.
"""

from __future__ import annotations

import uuid
from threading import Lock

import dagster as dg

_KEY = "leasehold/instance"
_PREFIX = "dagster-"
_CREATING = Lock()


def instance_address(instance: dg.DagsterInstance) -> str:
    """The instance's address; empty before its first rebalancing tick."""
    return instance.daemon_cursor_storage.get_cursor_values({_KEY}).get(_KEY, "")


def ensure_instance_address(instance: dg.DagsterInstance) -> str:
    """The instance's address, made at the first call.

    Only sensors call this, and they tick as threads of one process, so that a lock of the process
    is enough to make one address.
    """
    with _CREATING:
        known = instance_address(instance)
        if not known:
            known = f"{_PREFIX}{uuid.uuid4()}"
            instance.daemon_cursor_storage.set_cursor_values({_KEY: known})
        return known
