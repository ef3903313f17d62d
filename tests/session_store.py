"""An object store that lets session credentials in, until they expire and below one prefix only.

Moto gives such credentials and never refuses them, so this stands before it.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote

from tests import object_store

REFUSAL = (
    "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message>"
    "<RequestId>1</RequestId></Error>"
)
Environment = dict[str, Any]


@dataclass
class Sessions:
    """The credentials that were given out, and what a catalog says of them.

    Attributes:
        lifetime_s: of each.
        endpoint: of the store.
        secrets: all that must be shown nowhere.
        ends: of each token, with the prefix that it opens.
        refused: a code for each request that was refused.
    """

    lifetime_s: float = 3600.0
    endpoint: str = ""
    secrets: list[str] = field(default_factory=list[str])
    ends: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    refused: list[str] = field(default_factory=list[str])

    def issue(self, location: str) -> dict[str, str]:
        """The properties of new credentials for a location."""
        key, secret, token = (secrets.token_hex(16) for _ in range(3))
        ends_s = time.time() + self.lifetime_s
        self.secrets += [key, secret, token]
        self.ends[token] = (ends_s, location.removeprefix("s3://").rstrip("/"))
        return {
            "s3.access-key-id": key,
            "s3.secret-access-key": secret,
            "s3.session-token": token,
            "s3.session-token-expires-at-ms": str(int(1000 * ends_s)),
        }

    def settings(self) -> dict[str, str]:
        """The properties of the store."""
        return {"s3.endpoint": self.endpoint, "client.region": "us-east-1"}

    def refusal(self, environment: Environment) -> str:
        """Why a request is refused; empty if it is not."""
        ends_s, prefix = self.ends.get(environment.get("HTTP_X_AMZ_SECURITY_TOKEN", ""), (0.0, ""))
        if not prefix:
            return "InvalidToken"
        if time.time() >= ends_s:
            return "ExpiredToken"
        path = unquote(environment["PATH_INFO"]).strip("/")
        listed = parse_qs(environment.get("QUERY_STRING", "")).get("prefix", [""])[0]
        if "/" not in path:
            path = f"{path}/{listed}"
        whole = path.rstrip("/")
        return "" if whole == prefix or whole.startswith(f"{prefix}/") else "AccessDenied"


@contextmanager
def session_store(sessions: Sessions) -> Generator[str]:
    """Serve the store; yield the name of a new bucket."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    bucket, moto = object_store.new_bucket(), DomainDispatcherApplication(create_backend_app)

    def guarded(environment: Environment, start: Callable[..., Any]) -> Iterable[bytes]:
        code = sessions.refusal(environment)
        if not code:
            return moto(environment, start)
        sessions.refused.append(code)
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        body = REFUSAL.format(code=code, message=re.sub("(?<=[a-z])(?=[A-Z])", " ", code)).encode()
        length = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        start("400 Bad Request" if code == "ExpiredToken" else "403 Forbidden", length)
        return [body]

    server = make_server("127.0.0.1", 0, guarded, True, request_handler=MotoRequestHandler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    sessions.endpoint = f"http://127.0.0.1:{server.server_port}"
    yield bucket
    server.shutdown()
    thread.join()
    server.server_close()
