"""Credentials that a catalog vends for one table: rules, without a clock or requests.

The property names come from Iceberg's REST specification. An Arrow client cannot change its
credentials, so a new client is created before they expire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

DEFAULT_LIFETIME_S = 600.0
"""The assumed lifetime of credentials without an expiry, in seconds."""
RENEWAL_MIN_S = 0.5
"""The shortest time between two requests for credentials, in seconds."""
STORAGE_PREFIXES = ("s3.", "gcs.", "adls.", "client.")
_SAS, _SAS_EXPIRY = "adls.sas-token.", "adls.sas-token-expires-at-ms."
_EXPIRIES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "expiration-time")


class RemoteSigning(ValueError):
    """The catalog signs each request of its clients instead of vending credentials."""


@dataclass(frozen=True, slots=True)
class Vended:
    """Credentials of a table's location.

    Attributes:
        arguments: the arguments of Arrow's client.
        expires_s: the end of their validity, in seconds of the Unix epoch.
    """

    arguments: Mapping[str, Any] = field(repr=False)
    expires_s: float


def vended(properties: Mapping[str, str], scheme: str, root: str, now_s: float) -> Vended | None:
    """Return the credentials in a table's properties; None if the catalog vends none.

    Raises:
        RemoteSigning: there is only an endpoint that signs requests.
    """
    dated = [text for name in _EXPIRIES if (text := properties.get(name))]
    dated += [text for name, text in properties.items() if name.startswith(_SAS_EXPIRY)]
    expires_s = min((int(text) / 1000 for text in dated), default=now_s + DEFAULT_LIFETIME_S)
    match scheme:
        case "s3":
            arguments = _s3(properties)
        case "gs":
            arguments = _gcs(properties, expires_s)
        case "abfss":
            arguments = _azure(properties, root)
        case _:
            arguments = {}
    return Vended(arguments, expires_s) if arguments else None


def renewal_s(now_s: float, expires_s: float) -> float:
    """Return the time to request new credentials: halfway to the expiry, also after a failure.

    So work that begins with these credentials can use them for at least half of their lifetime.
    """
    return now_s + max(RENEWAL_MIN_S, (expires_s - now_s) / 2)


def _s3(properties: Mapping[str, str]) -> dict[str, Any]:
    if not properties.get("s3.access-key-id"):
        if str(properties.get("s3.remote-signing-enabled")).lower() == "true":
            raise RemoteSigning
        return {}
    names = {
        "access_key": ("s3.access-key-id",),
        "secret_key": ("s3.secret-access-key",),
        "session_token": ("s3.session-token",),
        "region": ("client.region", "s3.region"),
        "endpoint": ("s3.endpoint",),
    }
    arguments: dict[str, Any] = {
        argument: text
        for argument, each in names.items()
        if (text := next(filter(None, map(properties.get, each)), None))
    }
    if str(properties.get("s3.path-style-access")).lower() == "false":
        arguments["force_virtual_addressing"] = True
    return arguments


def _gcs(properties: Mapping[str, str], expires_s: float) -> dict[str, Any]:
    token = properties.get("gcs.oauth2.token")
    expires = datetime.fromtimestamp(expires_s, UTC)
    return {"access_token": token, "credential_token_expiration": expires} if token else {}


def _azure(properties: Mapping[str, str], root: str) -> dict[str, Any]:
    host = root.partition("@")[2]
    for account in (host, host.partition(".")[0]):
        if token := properties.get(f"{_SAS}{account}"):
            return {"sas_token": token.removeprefix("?")}
    return {}
