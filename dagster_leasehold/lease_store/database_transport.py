"""The transport of a session to MariaDB or MySQL: verified TLS, or a local connection.

Without TLS, others on the network can read rows and passwords. So for a server on another machine,
the URL must have either TLS with a verified certificate, or an option that declares the network
private. The loopback interface and a socket need neither.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from typing import Any

from sqlalchemy import URL

from dagster_leasehold.lease_store.errors import InvalidSetting, shown

MODE, WITHOUT_TLS = "ssl_mode", "disabled"
_FILES = ("ssl_ca", "ssl_cert", "ssl_key")


def transport(url: URL) -> tuple[URL, dict[str, Any]]:
    """Return the URL without its `ssl_*` options, and the driver's arguments for them.

    By itself, the driver would accept any certificate.

    Raises:
        InvalidSetting: an option is unknown, a file cannot be read, or the URL of a server on
            another machine has no TLS option.
    """
    query = dict(url.query)
    options = {name: _text(query.pop(name)) for name in tuple(query) if name.startswith("ssl_")}
    if not options and not _stays_here(url):
        raise InvalidSetting(
            f"The lease store's URL leads to {shown(url.host or '')} without TLS, so others could "
            "read its password and its data: add ?ssl_ca=/path/to/authority.pem to it, or "
            f"?{MODE}={WITHOUT_TLS} if the network is private."
        )
    unknown = sorted(options.keys() - {*_FILES, MODE})
    if unknown or options.get(MODE, WITHOUT_TLS) != WITHOUT_TLS:
        option = unknown[0] if unknown else f"{MODE}={options[MODE]}"
        raise InvalidSetting(
            f"The lease store's URL has the TLS option {shown(option)}: use ssl_ca, ssl_cert and "
            "ssl_key, which always verify certificate and host name, or "
            f"{MODE}={WITHOUT_TLS} alone."
        )
    if MODE in options and len(options) > 1:
        raise InvalidSetting(
            f"The lease store's URL has {MODE}={WITHOUT_TLS} and files for TLS: keep one of them."
        )
    url = url.set(query=query)
    if MODE in options:
        return url, {"ssl_disabled": True}
    return url, {"ssl": _verifying(options)} if options else {}


def _text(option: str | tuple[str, ...]) -> str:
    return option if isinstance(option, str) else option[0]


def _stays_here(url: URL) -> bool:
    if "unix_socket" in url.query or not url.host or url.host.lower() == "localhost":
        return True
    try:
        return ip_address(url.host).is_loopback
    except ValueError:
        return False


def _verifying(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], keyfile=options.get("ssl_key"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"The lease store's TLS files cannot be read ({error.strerror or error}): check "
            "ssl_ca, ssl_cert and ssl_key in its URL."
        ) from None
    return context
