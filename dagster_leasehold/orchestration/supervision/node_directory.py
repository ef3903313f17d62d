"""The address of each node's code server, and its Dagster home, in Dagster's own storage.

Agents publish, launchers look up. An entry does not say that a node lives: its lease does.
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
    """The address where a code server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return `host:port` as an endpoint.

        Raises:
            InvalidSetting: it is not of that form.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise InvalidSetting(f"The address {shown(text)} is not of the form HOST:PORT.")
        return cls(host, int(port))


def publish(instance: DagsterInstance, node: str, endpoint: Endpoint) -> None:
    """Let launchers find a node's code server, and the home that `instance` has on its host."""
    entry = json.dumps({**asdict(endpoint), "home": instance.root_directory})
    instance.daemon_cursor_storage.set_cursor_values({_PREFIX + node: entry})


def withdraw(instance: DagsterInstance, node: str) -> None:
    """Hide the node from launchers: it takes no further runs."""
    instance.daemon_cursor_storage.set_cursor_values({_PREFIX + node: ""})


def find(instance: DagsterInstance, node: str) -> Endpoint | None:
    """Return the address of a node's code server; None if no agent published it, or it left."""
    published = _published(instance, node)
    return Endpoint(published["host"], published["port"]) if published else None


def home_of(instance: DagsterInstance, node: str) -> str | None:
    """Return the folder of Dagster's own files on a node's host; None if `find` gives none."""
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
    """Return the id of the code server that answers at an endpoint; None if none does in time."""
    # It loads Dagster.
    from dagster_leasehold.assets.dagster_internals import code_server_client

    try:
        client = code_server_client(host=endpoint.host, port=endpoint.port)
        # The client forwards the timeout to gRPC, which takes fractions as well.
        return client.get_server_id(timeout=cast("int", timeout_s))
    except Exception:
        # Dagster wraps all errors of gRPC, by kinds that change from release to release.
        return None
