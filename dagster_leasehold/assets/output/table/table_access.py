"""Credentials of a table's location: each process gets them from the catalog and renews them.

They are only in this process's memory. A location that is sent to another process names the catalog
and the table, and that process requests credentials itself, with its own environment.

1. The first request loads the table, whose properties have credentials and their expiry.
2. Halfway to the expiry, one thread requests new ones, while other threads use the old ones.
3. If the catalog does not answer, the credentials are used until they expire. After that, each
   access repeats the request, and raises OSError until the catalog answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dagster_leasehold.assets.output.table.catalog_clients import open_client, reason
from dagster_leasehold.assets.places.store_clients import new_client
from dagster_leasehold.assets.places.vended import (
    DEFAULT_LIFETIME_S,
    STORAGE_PREFIXES,
    RemoteSigning,
    Vended,
    renewal_s,
    vended,
)
from dagster_leasehold.assets.table_settings import CatalogSettings
from dagster_leasehold.lease_store.publication_rows import TableName

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.table import Table

_LOG = logging.getLogger(__name__)
WITHOUT_SNAPSHOTS = {"snapshot-loading-mode": "refs"}


@dataclass(frozen=True, slots=True)
class TableAccess:
    """Access to the location of a table: a small value without secrets, for other processes."""

    catalog: CatalogSettings
    table: TableName

    def location(self) -> str:
        """Return the location of the table.

        Raises:
            OSError: the catalog does not answer, or has no such table.
        """
        return _credentials_of(self).location()

    def vends(self) -> bool:
        """Return True if the catalog vends credentials; raises what `location` raises."""
        return _credentials_of(self).newest() is not None

    def client(self) -> FileSystem:
        """Return Arrow's client with credentials that stay valid for a while.

        Raises:
            OSError: the catalog does not answer, and the credentials have expired.
        """
        return _credentials_of(self).client()


@lru_cache(maxsize=256)
def _credentials_of(access: TableAccess) -> HeldCredentials:
    return HeldCredentials(access)


class HeldCredentials:
    """The location and the credentials of one table in this process."""

    def __init__(
        self,
        access: TableAccess,
        open_catalog: Callable[[str, Mapping[str, str]], Any] = open_client,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._access, self._open, self._clock = access, open_catalog, clock
        self._catalog: Any = None
        self._location = ""
        self._properties: dict[str, str] = {}
        self._vended: Vended | None = None
        self._client: FileSystem | None = None
        self._renew_at_s = self._expires_s = float("-inf")
        self._lock, self._renewing = Lock(), Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._access!r})"

    def location(self) -> str:
        """Return the location of the table."""
        self.newest()
        return self._location

    def newest(self) -> Vended | None:
        """Return credentials that stay valid for a while; None if the catalog vends none."""
        self._renew_in_time()
        return self._vended

    def client(self) -> FileSystem:
        """Return a client with these credentials."""
        self._renew_in_time()
        with self._lock:
            if self._client is None:
                parts = urlsplit(self._location)
                arguments = self._vended.arguments if self._vended else {}
                self._client = new_client(parts.scheme, parts.netloc, arguments)
            return self._client

    def _renew_in_time(self) -> None:
        if self._clock() < self._renew_at_s:
            return
        # While the credentials are valid, only one thread waits for the catalog.
        if self._renewing.acquire(blocking=self._clock() >= self._expires_s):
            try:
                if self._clock() >= self._renew_at_s:
                    self._renew()
            finally:
                self._renewing.release()

    def _renew(self) -> None:
        now_s = self._clock()
        try:
            self._request()
            parts = urlsplit(self._location)
            newest = vended(self._properties, parts.scheme, parts.netloc, now_s)
        except Exception as error:
            failure = self._failure(error)
            if now_s >= self._expires_s:
                raise failure from None
            _LOG.warning("%s The last credentials are still valid.", failure)
        else:
            with self._lock:
                self._vended, self._client = newest, None
            self._expires_s = newest.expires_s if newest else now_s + DEFAULT_LIFETIME_S
        self._renew_at_s = renewal_s(now_s, self._expires_s)

    def _request(self) -> None:
        """Request only credentials if the catalog supports that; otherwise load the table."""
        catalog = self._opened()
        if self._vended and _answers_separately(catalog):
            credentials = catalog.load_credentials(self._name, self._location)
            if credentials:
                self._properties = {**self._properties, **credentials}
                return
        table = catalog.load_table(self._name)
        self._location = table.metadata.location.rstrip("/")
        self._properties = _storage_properties(table)

    def _opened(self) -> Any:
        if self._catalog is None:
            settings = self._access.catalog
            self._catalog = self._open(settings.name, {**settings.properties, **WITHOUT_SNAPSHOTS})
        return self._catalog

    @property
    def _name(self) -> tuple[str, ...]:
        table = self._access.table
        return (*table.namespace.split("."), table.name)

    def _failure(self, error: Exception) -> OSError:
        name = self._access.catalog.name
        if isinstance(error, RemoteSigning):
            return OSError(
                f"Catalog {name} signs each request to the store instead of vending credentials, "
                "which Leasehold does not support: configure the catalog to vend credentials."
            )
        return OSError(
            f"Catalog {name} does not give access to the location of the table "
            f"{self._access.table.namespace}.{self._access.table.name} ({reason(error, name)}): "
            "check that it runs, and that the account has the privileges."
        )


def _answers_separately(catalog: Any) -> bool:
    """Return True if a REST catalog supports requests for credentials alone."""
    from pyiceberg.catalog.rest import Capability

    return Capability.V1_LOAD_CREDENTIALS in getattr(catalog, "_supported_endpoints", ())


def _storage_properties(table: Table) -> dict[str, str]:
    """Return the properties of the store that the catalog adds to the table's metadata."""
    stored = table.metadata.properties
    return {
        name: str(value)
        for name, value in table.io.properties.items()
        if (name.startswith(STORAGE_PREFIXES) or name == "expiration-time")
        and stored.get(name) != value
    }
