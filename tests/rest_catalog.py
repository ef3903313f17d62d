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
from urllib.parse import urlsplit
from uuid import uuid4

import pyiceberg.catalog
import pytest
from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, Capability, CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.utils.config import Config

from tests.session_store import Sessions

TOKEN = "hush-4711"
COMMIT_PARTS = 4
"""The parts of the path of a commit: namespaces, the namespace, tables, the table."""


class Refusal(Exception):
    """A request that the service does not carry out."""


STATUSES = {
    Refusal: 400,
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


@dataclass
class Assigning:
    """A service that assigns locations and vends credentials.

    Attributes:
        warehouse: the URI below which each table gets a location of its own.
        sessions: gives the credentials; None for a service without.
        signs: True if it offers to sign requests instead.
        separately: True if it also answers requests for credentials alone.
        away: True while it answers nothing.
        loads: how many times a table was loaded.
        credentials: how many times credentials alone were given.
        given: what it says of a table in place of its credentials, if given.
    """

    warehouse: str
    sessions: Sessions | None = None
    signs: bool = False
    separately: bool = True
    away: bool = False
    loads: int = 0
    credentials: int = 0
    given: Any = None

    def new_location(self, asked: str | None) -> str:
        if asked is not None:
            raise Refusal(f"a location is assigned here, and {asked} was asked for")
        return f"{self.warehouse}/{uuid4()}"

    def config(self) -> dict[str, Any]:
        answered = [f"{each.http_method.value} {each.path}" for each in DEFAULT_ENDPOINTS]
        if self.separately:
            loads = Capability.V1_LOAD_CREDENTIALS
            answered.append(f"{loads.http_method.value} {loads.path}")
        return {"defaults": {}, "overrides": {}, "endpoints": answered}

    def vended(self, location: str) -> dict[str, Any]:
        if self.given is not None:
            return {"storage-credentials": self.given}
        own = [{"prefix": location, "config": self.sessions.issue(location)}]
        return {"storage-credentials": own if not self.signs else []}

    def shown(self, table: Table) -> dict[str, Any]:
        """The answer about a table, with credentials."""
        self.loads += 1
        if self.sessions is None:
            return shown(table)
        config = self.sessions.settings()
        if self.signs:
            config |= {"s3.remote-signing-enabled": "true", "s3.signer.uri": self.warehouse}
        return shown(table) | {"config": config} | self.vended(table.metadata.location)


@contextmanager
def rest_catalog(
    folder: Path,
    port: int = 0,
    commits: Commits | None = None,
    properties: Mapping[str, str] | None = None,
    assigning: Assigning | None = None,
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
            path = urlsplit(self.path).path.split("/")[2:]
            self.answer(lambda: get(catalog, path, assigning))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = self.path.split("/")[2:]
            if commits is None or len(path) != COMMIT_PARTS:
                self.answer(lambda: post(catalog, path, body, assigning))
                return
            commits.requests.append(body)
            if commits.status is None:
                self.answer(lambda: post(catalog, path, body, assigning))
                return
            if commits.takes:
                with suppress(CommitFailedException):
                    post(catalog, path, body, assigning)
            if commits.status:
                self.reply(commits.status, error(commits.status, "not now"))
            else:
                self.close_connection = True

        def answer(self, work: Callable[[], dict[str, Any]]) -> None:
            """Do the work and reply; a refusal repeats the token, as careless services do."""
            authorization = self.headers.get("Authorization", "")
            status, reply = 200, {}
            if assigning is not None and assigning.away:
                status, reply = 503, error(503, "not now")
            elif authorization != f"Bearer {TOKEN}":
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


def get(catalog: SqlCatalog, path: list[str], assigning: Assigning | None) -> dict[str, Any]:
    if path == ["config"]:
        return {"defaults": {}, "overrides": {}} if assigning is None else assigning.config()
    if path[0] == "namespaces" and len(path) == 2:
        return {"namespace": [path[1]], "properties": catalog.load_namespace_properties(path[1])}
    _, namespace, _, name, *rest = path
    table = catalog.load_table((namespace, name))
    if assigning is None:
        return shown(table)
    if not rest:
        return assigning.shown(table)
    assigning.credentials += 1
    return assigning.vended(table.metadata.location)


def post(
    catalog: SqlCatalog, path: list[str], body: bytes, assigning: Assigning | None
) -> dict[str, Any]:
    answer = shown if assigning is None else assigning.shown
    if path == ["namespaces"]:
        namespace = json.loads(body)["namespace"]
        catalog.create_namespace(tuple(namespace))
        return {"namespace": namespace, "properties": {}}
    if path == ["tables", "rename"]:
        names = [json.loads(body)[each] for each in ("source", "destination")]
        catalog.rename_table(*((*each["namespace"], each["name"]) for each in names))
        return {}
    if path[-1] == "register":
        registration = json.loads(body)
        name = (path[1], registration["name"])
        return answer(catalog.register_table(name, registration["metadata-location"]))
    if len(path) == 3:
        new = CreateTableRequest.model_validate({"location": None} | json.loads(body))
        at = new.location if assigning is None else assigning.new_location(new.location)
        name = (path[1], new.name)
        table = catalog.create_table(name, new.table_schema, at, properties=new.properties)
        return answer(table)
    commit = CommitTableRequest.model_validate_json(body)
    _, namespace, _, name = path
    table = catalog.load_table((namespace, name))
    catalog.commit_table(table, commit.requirements, commit.updates)
    return answer(catalog.load_table((namespace, name)))


def shown(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
