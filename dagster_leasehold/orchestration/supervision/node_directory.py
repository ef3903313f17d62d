"""The directory of nodes in Dagster's storage: each code server's address and Dagster home.

Agents publish entries, and launchers read them. Only a lease, not an entry, proves that a node is
alive.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from dagster_leasehold.lease_store.errors import InvalidSetting, shown

if TYPE_CHECKING:
    from dagster import DagsterInstance

_PREFIX = "leasehold/node/"
ANSWER_TIMEOUT_S = 3.0
PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The host and port of a code server or of health pages."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return `host:port` as an endpoint."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise InvalidSetting(f"The address {shown(text)} is not valid: use HOST:PORT.")
        return cls(host, int(port))


def publish(instance: DagsterInstance, node: str, endpoint: Endpoint) -> None:
    """Publish the address of a node's code server, and the root directory of its `instance`."""
    entry = json.dumps({**asdict(endpoint), "home": instance.root_directory})
    instance.daemon_cursor_storage.set_cursor_values({_PREFIX + node: entry})


def withdraw(instance: DagsterInstance, node: str) -> None:
    """Remove the node's address, so that launchers send it no runs."""
    instance.daemon_cursor_storage.set_cursor_values({_PREFIX + node: ""})


def find(instance: DagsterInstance, node: str) -> Endpoint | None:
    """Return the address of a node's code server; None if it was not published or is withdrawn."""
    published = _published(instance, node)
    return Endpoint(published["host"], published["port"]) if published else None


def home_of(instance: DagsterInstance, node: str) -> str | None:
    """Return the root directory of Dagster's instance on a node's host; None as with `find`."""
    published = _published(instance, node)
    return published["home"] if published else None


def withdrawn(instance: DagsterInstance, node: str) -> bool:
    """Return True if the node had an agent that has left."""
    return _entry(instance, node) == ""


def _published(instance: DagsterInstance, node: str) -> dict[str, Any] | None:
    entry = _entry(instance, node)
    return json.loads(entry) if entry else None


def _entry(instance: DagsterInstance, node: str) -> str | None:
    key = _PREFIX + node
    return instance.daemon_cursor_storage.get_cursor_values({key}).get(key)


def server_id(endpoint: Endpoint, *, timeout_s: float = ANSWER_TIMEOUT_S) -> str | None:
    """Return the id of the code server at an endpoint; None if no server answers in time."""
    # Imported here because it loads Dagster.
    from dagster_leasehold.assets.dagster_internals import code_server_client

    try:
        client = code_server_client(host=endpoint.host, port=endpoint.port)
        # The client declares an int, but gRPC accepts fractions of a second.
        return client.get_server_id(timeout=cast("int", timeout_s))
    except Exception:
        # Dagster wraps gRPC's errors in classes that differ between its releases.
        return None
