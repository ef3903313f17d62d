"""The pages `/healthz` and `/readyz`, which show an orchestrator the state of a process.

An orchestrator such as Kubernetes restarts an unhealthy process, and waits for a process that is
not ready. Each page is one line of text, with the status 200 or 503.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from typing_extensions import override

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint

HEALTH, READINESS = "/healthz", "/readyz"
REQUEST_TIMEOUT_S = 10.0
"""The time after which the connection of a silent client is closed."""

Check = Callable[[], str]
"""Returns a message about the problem; empty without one."""


@contextmanager
def health_pages(at: Endpoint, checks: Mapping[str, Check]) -> Generator[Endpoint]:
    """Serve the pages within the block; yield the endpoint with its actual port.

    Args:
        at: the address to listen on; port 0 means any free port. The pages have no login.
    """

    class Pages(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            check = checks.get(self.path)
            if check is None:
                self._answer(HTTPStatus.NOT_FOUND, f"Only {' and '.join(checks)} are here.")
                return
            problem = check()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            self._answer(status, problem or "ok")

        def _answer(self, status: HTTPStatus, sentence: str) -> None:
            body = f"{sentence}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((at.host, at.port), Pages)
    except OSError as error:
        raise InvalidSetting(
            f"The health pages cannot be served at {at} ({error.strerror}): give another address "
            "with --health."
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield Endpoint(at.host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
