"""A stand-in for a schema registry, since no package of PyPI or npm has a real one.

It is written from the reference of Confluent's API: schemas by id, versions of subjects, errors
with their codes, and Protobuf schemas in serialized form. The tests' producers are Confluent's own
serializers, so their registrations go through it too.
"""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistryServer:
    """A registry on the loopback, which serves while it is entered.

    Attributes:
        requests: the methods and paths of the requests.
        authorization: the header that each request must have; empty for none.
        failure: the status of each answer; 0 to answer.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[str] = []
        self.authorization = ""
        self.failure = 0
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self, None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                registry.answer(self, json.loads(body))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> SchemaRegistryServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: list[Any] | None = None
    ) -> int:
        """Register a schema; return its id, which an equal schema already has."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, "schemaType": kind, "references": references or []}
        with self._lock:
            numbers = (number for number, each in self._schemas.items() if each == entry)
            number = next(numbers, len(self._schemas) + 1)
            self._schemas[number] = entry
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
        return number

    def answer(self, request: BaseHTTPRequestHandler, body: Any) -> None:
        """Answer a request."""
        self.requests.append(f"{request.command} {request.path}")
        if self.authorization and request.headers["Authorization"] != self.authorization:
            status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        elif self.failure:
            status, answer = self.failure, {"error_code": 50001, "message": "Error in the backend"}
        else:
            status, answer = self._reply(urlsplit(request.path), body)
        content = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", MEDIA_TYPE)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _reply(self, url: Any, body: Any) -> tuple[int, Any]:
        serialized = parse_qs(url.query).get("format") == ["serialized"]
        match [unquote(part) for part in url.path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                entry = self._schemas.get(int(number))
                if entry is None:
                    return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
                return 200, _shown(entry, serialized)
            case ["subjects", subject, "versions"] if body is not None:
                kind = body.get("schemaType", "AVRO")
                number = self.register(subject, body["schema"], kind, body.get("references"))
                return 200, {"id": number}
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                versions = self._subjects[subject]
                place = len(versions) if version == "latest" else int(version)
                if not 0 < place <= len(versions):
                    return 404, {"error_code": 40402, "message": "Version not found."}
                number = versions[place - 1]
                own = {"subject": subject, "version": place, "id": number}
                return 200, own | _shown(self._schemas[number], serialized)
            case ["subjects", subject] if body is not None:
                for number in self._subjects.get(subject, ()):
                    entry = self._schemas[number]
                    if entry["schema"] == body["schema"]:
                        place = self._subjects[subject].index(number) + 1
                        own = {"subject": subject, "version": place, "id": number}
                        return 200, own | _shown(entry, serialized)
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case _:
                return 404, {"error_code": 40401, "message": "Subject not found."}


def _shown(entry: dict[str, Any], serialized: bool) -> dict[str, Any]:
    """Return a schema as the registry shows it: only Protobuf has a serialized form."""
    shown = {key: value for key, value in entry.items() if value and value != "AVRO"}
    if entry["schemaType"] == "PROTOBUF" and not serialized:
        shown["schema"] = '// The registry would print the source here.\nsyntax = "proto3";'
    return shown


def login(user: str, password: str) -> str:
    """Return the header of basic authentication."""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
