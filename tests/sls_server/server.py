"""The service on HTTP, in a thread of the test."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from tests.sls_server.signatures import Request, check
from tests.sls_server.store import ConsumerGroup, Logstore, ServiceError, Shard, encoded

CREDENTIALS_PATH = "/latest/meta-data/ram/security-credentials/reader"
PULLED_BYTES_MAX = 10 * 1024 * 1024


class SlsServer:
    """One endpoint with one project's logstores.

    Attributes:
        keys: the accepted access keys: id to secret and token.
        role: the temporary credentials that the address returns: id, secret, token.
        received_at: the time at which records arrive, in seconds since 1970; a test can set it.
        requests: the number of answered and refused requests of each kind.
        refusals: refusals that are sent before anything else, the next first.
        before: called with each request before it is handled; it can wait.
        throttled: refuse so many of the next reads for their number; None refuses all.
    """

    def __init__(self, project: str = "project", port: int = 0) -> None:
        self.project = project
        self.logstores: dict[str, Logstore] = {}
        self.keys: dict[str, tuple[str, str]] = {"LTAItest": ("secret-of-test", "")}
        self.role: tuple[str, str, str] = ("LTAItest", "secret-of-test", "")
        self.received_at: Callable[[], float] = time.time
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.requests: dict[str, int] = {}
        self.refusals: list[ServiceError] = []
        self.throttled: int | None = 0
        self.before: Callable[[Request], None] = lambda _: None
        self.lock = threading.RLock()
        service = self

        class Handler(_Handler):
            sls = service

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def credentials_uri(self) -> str:
        return self.endpoint + CREDENTIALS_PATH

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def create(self, logstore: str, shards: int = 2, *, step: int = 1) -> Logstore:
        made = self.logstores[logstore] = Logstore(shards, self.clock, step)
        return made

    def clock(self) -> float:
        return self.received_at()

    # --- What a request does ---

    def answer(self, request: Request) -> tuple[bytes, dict[str, str]]:
        """The body and headers of an answer.

        Raises:
            ServiceError: the request is refused.
        """
        if self.refusals:
            raise self.refusals.pop(0)
        check(request, self.keys, self.now())
        host = request.headers.get("host", "")
        if not host.startswith(f"{self.project}."):
            raise ServiceError(404, "ProjectNotExist", f"The Project does not exist: {host}")
        parts = request.path.strip("/").split("/")
        kind = f"{request.method} {parts[2] if len(parts) > 2 else ''} {request.query.get('type')}"
        self.requests[kind] = self.requests.get(kind, 0) + 1
        if parts[0] != "logstores" or parts[1] not in self.logstores:
            raise ServiceError(404, "LogStoreNotExist", f"logstore {parts[1]} does not exist")
        store = self.logstores[parts[1]]
        if parts[2] == "shards":
            return self._shards(store, parts[3:], request)
        if parts[2] == "consumergroups":
            return self._consumer_groups(store, parts[3:], request)
        raise ServiceError(404, "NotFound", request.path)

    def _shards(
        self, store: Logstore, rest: list[str], request: Request
    ) -> tuple[bytes, dict[str, str]]:
        query = request.query
        match request.method, rest, query.get("type") or query.get("action"):
            case "GET", [], _:
                return _json([_listed(shard) for shard in store.shards.values()])
            case "POST", ["route"], _:
                self._put(store.owner(query["key"]), request)
                return b"", {}
            case "GET", [name], "cursor":
                return _json({"cursor": encoded(_position(store.shard(name), query["from"]))})
            case "GET", [name], "cursor_time":
                return _json({"cursor_time": store.shard(name).received(query["cursor"])})
            case "GET", [name], "log":
                return self._pull(store.shard(name), request)
            case "POST", [name], "split":
                return _json([_listed(shard) for shard in store.split(name, query["key"])])
            case "POST", [name], "merge":
                return _json([_listed(shard) for shard in store.merge(name)])
            case "DELETE", [name], _:
                store.shards.pop(store.shard(name).number)
                return b"", {}
            case _:
                raise ServiceError(400, "ParameterInvalid", request.path)

    def _put(self, shard: Shard, request: Request) -> None:
        body = request.body
        if request.headers["content-type"] != "application/x-protobuf":
            raise ServiceError(415, "InvalidContentType", "")
        if compression := request.headers.get("x-log-compresstype"):
            size = int(request.headers["x-log-bodyrawsize"])
            codec = {"lz4": "lz4_raw", "zstd": "zstd"}[compression]
            body = pa.decompress(body, decompressed_size=size, codec=codec, asbytes=True)
        shard.append(body, self.received_at())

    def _pull(self, shard: Shard, request: Request) -> tuple[bytes, dict[str, str]]:
        if self.throttled is None or self.throttled > 0:
            self.throttled = None if self.throttled is None else self.throttled - 1
            raise ServiceError(403, "ShardReadQuotaExceed", "shard read quota exceed")
        query = request.query
        end = shard.cursor(query["end_cursor"]) if "end_cursor" in query else None
        count = int(query["count"])
        if not 1 <= count <= 1000:
            raise ServiceError(400, "ParameterInvalid", "count")
        groups, following = shard.pull(shard.cursor(query["cursor"]), end, count)
        sent: list[bytes] = []
        for group in groups:
            if sent and sum(map(len, sent)) + len(group.message) > PULLED_BYTES_MAX:
                following = group.number
                break
            sent.append(group.message)
        # A LogGroupList is its LogGroups, each as field 1 with its length.
        raw = b"".join(b"\x0a" + _varint(len(message)) + message for message in sent)
        accepted = request.headers.get("accept-encoding", "")
        body = _compressed(raw, accepted)
        if shard.damaged:
            body = body[: len(body) // 2]
        headers = {
            "x-log-count": str(len(sent)),
            "x-log-cursor": encoded(following),
            "x-log-bodyrawsize": str(len(raw)),
            "Content-Type": "application/x-protobuf",
        }
        return body, headers | ({"x-log-compresstype": accepted} if accepted else {})

    def _consumer_groups(
        self, store: Logstore, rest: list[str], request: Request
    ) -> tuple[bytes, dict[str, str]]:
        given: Any = json.loads(request.body) if request.body else {}
        match request.method, rest, request.query.get("type"):
            case "GET", [], _:
                return _json(
                    [
                        {"name": name, "timeout": group.timeout_s, "order": group.ordered}
                        for name, group in store.consumer_groups.items()
                    ]
                )
            case "POST", [], _:
                name = given["consumerGroup"]
                if name in store.consumer_groups:
                    raise ServiceError(400, "ConsumerGroupAlreadyExist", name)
                store.consumer_groups[name] = ConsumerGroup(given["timeout"], given["order"])
            case "PUT", [name], _:
                group = store.consumer_group(name)
                group.timeout_s = given.get("timeout", group.timeout_s)
                group.ordered = given.get("order", group.ordered)
            case "DELETE", [name], _:
                store.consumer_group(name)
                del store.consumer_groups[name]
            case "GET", [name], _:
                return _json(_checkpoints(store, store.consumer_group(name), request.query))
            case "POST", [name], "heartbeat":
                group = store.consumer_group(name)
                consumer, now = request.query["consumer"], self.received_at()
                return _json(_beat(store, group, consumer, given or [], now))
            case "POST", [name], "checkpoint":
                self._checkpoint(store, store.consumer_group(name), given, request.query)
            case _:
                raise ServiceError(400, "ParameterInvalid", request.path)
        return b"", {}

    def _checkpoint(
        self, store: Logstore, group: ConsumerGroup, given: Any, query: Mapping[str, str]
    ) -> None:
        shard = store.shard(str(given["shard"]))
        shard.cursor(given["checkpoint"])
        forced = query.get("forceSuccess", "").lower() == "true"
        if not forced and group.holders.get(shard.number) != query.get("consumer"):
            raise ServiceError(404, "ConsumerNotExist", query.get("consumer", ""))
        group.checkpoints[shard.number] = given["checkpoint"]
        group.updated[shard.number] = int(self.received_at() * 1_000_000)


def _position(shard: Shard, text: str) -> int:
    if text == "begin":
        return shard.first_number
    if text == "end":
        return shard.next_number
    if not text.isdecimal():
        raise ServiceError(400, "ParameterInvalid", f"from {text}")
    return shard.at_time(int(text))


def _checkpoints(
    store: Logstore, group: ConsumerGroup, query: Mapping[str, str]
) -> list[dict[str, Any]]:
    wanted = [int(query["shard"])] if "shard" in query else sorted(store.shards)
    return [
        {
            "shard": number,
            "checkpoint": group.checkpoints.get(number, ""),
            "updateTime": group.updated.get(number, 0),
            "consumer": group.holders.get(number, ""),
        }
        for number in wanted
        if number in group.checkpoints or number in group.holders
    ]


def _beat(
    store: Logstore, group: ConsumerGroup, consumer: str, serving: list[int], now: float
) -> list[int]:
    """Return the shards of this consumer: those of silent consumers are free again.

    A consumer that has two more shards than another loses one, and the other gets it as soon as a
    beat says that the first has released it.
    """
    group.beats[consumer] = now
    live = {name for name, at in group.beats.items() if now - at <= group.timeout_s}
    for number in store.shards:
        left = number in group.leaving and number not in serving
        if group.holders.get(number) not in live or (left and group.holders[number] == consumer):
            group.leaving.discard(number)
            group.holders[number] = min(live, key=lambda name: _load(group, name))
    given = sorted(number for number, name in group.holders.items() if name == consumer)
    least = min(_load(group, name)[0] for name in live)
    group.leaving.update(given[: (len(given) - least) // 2])
    return [number for number in given if number not in group.leaving]


def _load(group: ConsumerGroup, consumer: str) -> tuple[int, str]:
    return sum(name == consumer for name in group.holders.values()), consumer


def _listed(shard: Shard) -> dict[str, Any]:
    return {
        "shardID": shard.number,
        "status": "readonly" if shard.read_only else "readwrite",
        "inclusiveBeginKey": shard.begin,
        "exclusiveEndKey": shard.end,
        "createTime": shard.created,
    }


def _json(value: Any) -> tuple[bytes, dict[str, str]]:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _compressed(raw: bytes, codec: str) -> bytes:
    match codec:
        case "lz4":
            return pa.compress(raw, codec="lz4_raw", asbytes=True) if raw else b""
        case "zstd":
            return pa.compress(raw, codec="zstd", asbytes=True)
        case "deflate":
            return zlib.compress(raw)
        case "":
            return raw
        case _:
            raise ServiceError(400, "InvalidAcceptEncoding", codec)


class _Handler(BaseHTTPRequestHandler):
    """Turns HTTP into requests and answers."""

    sls: SlsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        if parts.path == CREDENTIALS_PATH:
            names = ("AccessKeyId", "AccessKeySecret", "SecurityToken")
            credentials = dict(zip(names, self.sls.role, strict=True)) | {"Code": "Success"}
            self._send(200, json.dumps(credentials).encode(), {"Content-Type": "application/json"})
            return
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        request = Request(self.command, unquote(parts.path), query, headers, body)
        self.sls.before(request)
        try:
            with self.sls.lock:
                answered, extra = self.sls.answer(request)
            self._send(200, answered, extra)
        except ServiceError as error:
            refusal = {"errorCode": error.code, "errorMessage": error.message}
            self._send(error.status, json.dumps(refusal).encode(), {})

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("x-log-requestid", "5F0000000000000000000000")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
