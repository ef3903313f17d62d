"""A stand-in for a catalog's REST service: the few requests that a publisher sends.

No package index has a server that keeps a table where the client wants it. PyIceberg's SQL catalog
over a file answers here, in the form of Iceberg's REST specification.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyiceberg.catalog
import pytest
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.utils.config import Config

TOKEN = "hush-4711"
COMMIT_PARTS = 4
"""The parts of the path of a commit: namespaces, the namespace, tables, the table."""
STATUSES = {
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


def give_token(monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> None:
    """Put the token of the catalog `lake` into the environment."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", token)
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())  # read when it is imported


@dataclass
class Commits:
    """How a service answers commits.

    Attributes:
        status: the status of the reply; 0 closes the connection without a reply.
        takes: True if it carries out the commits that it answers like this.
        requests: the bodies of all requests.
    """

    status: int | None = None
    takes: bool = False
    requests: list[bytes] = field(default_factory=list[bytes])


@contextmanager
def rest_catalog(
    folder: Path,
    port: int = 0,
    commits: Commits | None = None,
    properties: Mapping[str, str] | None = None,
) -> Generator[str]:
    """Serve a catalog whose state is in a folder; yield its URI. It asks for `TOKEN`.

    By `properties` the service itself reaches the tables' metadata.
    """
    (folder / "service").mkdir(exist_ok=True)
    state = {"uri": f"sqlite:///{folder}/service/catalog.db", "warehouse": "none"}
    catalog = SqlCatalog("service", **state, **(properties or {}))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(lambda: get(catalog, self.path.split("/")[2:]))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = self.path.split("/")[2:]
            if commits is None or len(path) != COMMIT_PARTS:
                self.answer(lambda: post(catalog, path, body))
                return
            commits.requests.append(body)
            if commits.status is None:
                self.answer(lambda: post(catalog, path, body))
                return
            if commits.takes:
                with suppress(CommitFailedException):
                    post(catalog, path, body)
            if commits.status:
                self.reply(commits.status, error(commits.status, "not now"))
            else:
                self.close_connection = True

        def answer(self, work: Callable[[], dict[str, Any]]) -> None:
            """Do the work and reply; a refusal repeats the token, as careless services do."""
            authorization = self.headers.get("Authorization", "")
            status, reply = 200, {}
            if authorization != f"Bearer {TOKEN}":
                status, reply = 401, error(401, f"nobody is {authorization.split()[-1:]}")
            else:
                try:
                    reply = work()
                except tuple(STATUSES) as refusal:
                    status = STATUSES[type(refusal)]
                    reply = error(status, str(refusal))
            self.reply(status, reply)

        def reply(self, status: int, reply: dict[str, Any]) -> None:
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "Refused", "code": status}}


def get(catalog: SqlCatalog, path: list[str]) -> dict[str, Any]:
    if path == ["config"]:
        return {"defaults": {}, "overrides": {}}
    _, namespace, _, name = path
    return shown(catalog.load_table((namespace, name)))


def post(catalog: SqlCatalog, path: list[str], body: bytes) -> dict[str, Any]:
    if path == ["namespaces"]:
        namespace = json.loads(body)["namespace"]
        catalog.create_namespace(tuple(namespace))
        return {"namespace": namespace, "properties": {}}
    if len(path) == 3:
        new = CreateTableRequest.model_validate_json(body)
        name = (path[1], new.name)
        table = catalog.create_table(
            name, new.table_schema, new.location, properties=new.properties
        )
        return shown(table)
    commit = CommitTableRequest.model_validate_json(body)
    _, namespace, _, name = path
    table = catalog.load_table((namespace, name))
    catalog.commit_table(table, commit.requirements, commit.updates)
    return shown(catalog.load_table((namespace, name)))


def shown(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
