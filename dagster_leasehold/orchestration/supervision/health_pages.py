"""Two pages that tell an orchestrator how a process does: `/healthz` and `/readyz`.

The names and the meaning come from Kubernetes' probes: who is not healthy is started again, who
is not ready is waited for. Each page is one line of text, with the status 200 or 503.
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
"""A client that says nothing for so long is hung up on."""

Check = Callable[[], str]
"""Returns the sentence that names the trouble; an empty text if there is none."""


@contextmanager
def health_pages(at: Endpoint, checks: Mapping[str, Check]) -> Generator[Endpoint]:
    """Answer at an endpoint within the block; yield it, with the port where that was 0.

    Args:
        at: where to listen; every client that reaches it can read the pages.
        checks: the check behind each path.

    Raises:
        InvalidSetting: the address cannot be listened on.
    """

    class Pages(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            check = checks.get(self.path)
            if check is None:
                self._answer(HTTPStatus.NOT_FOUND, f"Only {' and '.join(checks)} are here.")
                return
            wrong = check()
            status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
            self._answer(status, wrong or "ok")

        def _answer(self, status: HTTPStatus, sentence: str) -> None:
            body = f"{sentence}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet: probes come every few seconds, for years."""

    try:
        server = ThreadingHTTPServer((at.host, at.port), Pages)
    except OSError as error:
        raise InvalidSetting(
            f"The health pages cannot be served at {at} ({error.strerror}): name another address "
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
