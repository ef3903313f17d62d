"""A small Kafka broker for features that librdkafka's mock broker lacks.

It serves stored records over TCP in Kafka's protocol to real clients: partitions that are added,
seeks by time, transactions (open, aborted, committed) with their stable offset, compaction,
retention, log-in by name and password (SASL PLAIN), TLS, throttling, temporary errors, and
committed offsets of a group. The test adds records directly. There is one broker, and all data is
in memory.
"""

from __future__ import annotations

import socketserver
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.kafka_wire import (
    ABORT,
    COMMIT,
    TRANSACTIONAL,
    Reading,
    Stored,
    array,
    blob,
    control_batch,
    record_batch,
    text,
)

OFFSET_OUT_OF_RANGE, UNKNOWN_PARTITION, UNSUPPORTED_VERSION, AUTHENTICATION_FAILED = 1, 3, 35, 58
PRODUCE, FETCH, LIST_OFFSETS, METADATA, COMMIT_OFFSETS, FETCH_OFFSETS = 0, 1, 2, 3, 8, 9
DESCRIBE_GROUPS, LIST_GROUPS = 15, 16
FIND_COORDINATOR, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 10, 17, 18, 36
# The one served version of each request; producing is listed and not implemented.
VERSIONS = {
    PRODUCE: 3,
    FETCH: 4,
    LIST_OFFSETS: 2,
    METADATA: 4,
    COMMIT_OFFSETS: 2,
    FETCH_OFFSETS: 2,
    DESCRIBE_GROUPS: 0,
    LIST_GROUPS: 0,
    FIND_COORDINATOR: 0,
    SASL_HANDSHAKE: 1,
    API_VERSIONS: 0,
    SASL_AUTHENTICATE: 0,
}


@dataclass(slots=True)
class Batch:
    base: int
    last: int
    records: list[Stored]
    producer: int = -1
    attributes: int = 0
    encoded: bytes = b""

    def encode(self) -> Batch:
        self.encoded = record_batch(
            self.records, self.base, self.last, producer=self.producer, attributes=self.attributes
        )
        return self


@dataclass(slots=True)
class Partition:
    begin: int = 0
    end: int = 0
    batches: list[Batch] = field(default_factory=list)
    open_since: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def stable_end(self) -> int:
        return min(self.open_since.values(), default=self.end)

    def append(self, records: Iterable[Stored], producer: int = -1) -> int:
        """Store records as one batch at the end, with offsets of their own; the new end."""
        placed = [
            Stored(self.end + n, r.time_ms, r.value, r.key, r.headers)
            for n, r in enumerate(records)
        ]
        if placed:
            attributes = TRANSACTIONAL if producer >= 0 else 0
            if producer >= 0:
                self.open_since.setdefault(producer, self.end)
            last = placed[-1].offset
            batch = Batch(self.end, last, placed, producer, attributes)
            self.batches.append(batch.encode())
            self.end = last + 1
        return self.end

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        """Write the marker that makes a producer's records count, or not."""
        first = self.open_since.pop(producer)
        if not commit:
            self.aborted.append((producer, first, self.end))
        marker = control_batch(self.end, producer, COMMIT if commit else ABORT)
        self.batches.append(Batch(self.end, self.end, [], encoded=marker))
        self.end += 1

    def compact(self) -> None:
        """Keep the last record of each key, as compaction does; batches keep their offsets."""
        newest = {r.key: r.offset for batch in self.batches for r in batch.records}
        for batch in self.batches:
            newest_records = [
                r for r in batch.records if r.key is None or newest[r.key] == r.offset
            ]
            if len(newest_records) < len(batch.records):
                batch.records = newest_records
                batch.encode()

    def retain(self, begin: int) -> None:
        """Remove all records before an offset."""
        self.begin = begin
        self.batches = [batch for batch in self.batches if batch.last >= begin]

    def at_time(self, time_ms: int) -> tuple[int, int]:
        for batch in self.batches:
            for record in batch.records:
                if record.time_ms >= time_ms and record.offset >= self.begin:
                    return record.time_ms, record.offset
        return -1, -1

    def fetched(self, offset: int, end: int, bytes_max: int) -> bytes:
        """Whole batches from the one that holds `offset` on; one at least."""
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.batches[middle].last < offset else (low, middle)
        encoded: list[bytes] = []
        size = 0
        for batch in self.batches[low:]:
            if batch.base >= end or (encoded and size + len(batch.encoded) > bytes_max):
                break
            encoded.append(batch.encoded)
            size += len(batch.encoded)
        return b"".join(encoded)


class KafkaBroker:
    """The broker: topics by name, each a list of partitions; it serves inside its block.

    Args:
        users: names and passwords; None accepts every client.
        tls: its certificate and the authorities that it trusts; None disables TLS.

    Attributes:
        joined: the groups that are described as stable.
        refuse_commits: an error code for committed offsets, or 0.
        refuse_fetches: error codes for the next fetches, each used once.
        throttle_s: the delay of each fetch, as its reply says.
    """

    def __init__(
        self, users: dict[str, str] | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.topics: dict[str, list[Partition]] = {}
        self.users = users
        self.committed: dict[tuple[str, str, int], int] = {}
        self.joined: set[str] = set()
        self.refuse_commits = 0
        self.refuse_fetches: list[int] = []
        self.throttle_s = 0.0
        self.tls = tls
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Session)
        self._server.broker = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self.host, self.port = self._server.server_address[:2]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> KafkaBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.close_sessions()
        self._server.server_close()
        self._thread.join()

    def drop_connections(self) -> None:
        self._server.close_sessions()

    # --- Answers ---

    def answer(self, api: int, request: Reading) -> bytes:
        answers: dict[int, Callable[[Reading], bytes]] = {
            FETCH: self._fetch,
            LIST_OFFSETS: self._list_offsets,
            METADATA: self._metadata,
            COMMIT_OFFSETS: self._commit_offsets,
            FETCH_OFFSETS: self._fetch_offsets,
            DESCRIBE_GROUPS: self._describe_groups,
            LIST_GROUPS: self._list_groups,
            FIND_COORDINATOR: self._coordinator,
        }
        return answers[api](request)

    def _partition(self, topic: str, number: int) -> Partition | None:
        partitions = self.topics.get(topic, [])
        return partitions[number] if number < len(partitions) else None

    def _metadata(self, request: Reading) -> bytes:
        count = request.count()
        names = [request.text() for _ in range(count)] if count >= 0 else list(self.topics)
        broker = (
            struct.pack(">i", 1) + text("127.0.0.1") + struct.pack(">i", self.port) + text(None)
        )
        one = array([struct.pack(">i", 1)])
        topics: list[bytes] = []
        for name in names:
            partitions = self.topics.get(name)
            parts = (
                struct.pack(">hii", 0, number, 1) + one + one
                for number in range(len(partitions or ()))
            )
            error = 0 if partitions is not None else UNKNOWN_PARTITION
            topics.append(struct.pack(">h", error) + text(name) + b"\0" + array(parts))
        head = struct.pack(">i", 0) + array([broker]) + text("fake") + struct.pack(">i", 1)
        return head + array(topics)

    def _by_topic(self, request: Reading, each: Callable[[str, int], bytes]) -> bytes:
        topics: list[bytes] = []
        for _ in range(request.count()):
            name = request.text()
            parts = [each(name, request.number("i")) for _ in range(request.count())]
            topics.append(text(name) + array(parts))
        return array(topics)

    def _fetch(self, request: Reading) -> bytes:
        _, wait_ms, _, _ = (request.number("i") for _ in range(4))
        stable = request.number("b") == 1
        filled = False
        refusal = self.refuse_fetches.pop(0) if self.refuse_fetches else 0
        throttled_s = self.throttle_s
        self._closing.wait(throttled_s)

        def each(topic: str, number: int) -> bytes:
            nonlocal filled
            offset, bytes_max = request.number("q"), request.number("i")
            partition = self._partition(topic, number)
            if partition is None:
                return struct.pack(">ihqqii", number, UNKNOWN_PARTITION, -1, -1, -1, 0)
            if refusal:
                return struct.pack(">ihqqii", number, refusal, -1, -1, -1, 0)
            last_stable = partition.stable_end
            if not partition.begin <= offset <= partition.end:
                return struct.pack(">ihqqii", number, OFFSET_OUT_OF_RANGE, -1, -1, -1, 0)
            records = partition.fetched(offset, last_stable if stable else partition.end, bytes_max)
            filled = filled or bool(records)
            aborted = [
                struct.pack(">qq", producer, first)
                for producer, first, end in partition.aborted
                if end >= offset
            ]
            head = struct.pack(">ihqq", number, 0, partition.end, last_stable)
            return head + array(aborted if stable else ()) + blob(records)

        answered = self._by_topic(request, each)
        if not filled:
            time.sleep(min(wait_ms, 20) / 1000)
        return struct.pack(">i", round(throttled_s * 1000)) + answered

    def _list_offsets(self, request: Reading) -> bytes:
        request.number("i")
        stable = request.number("b") == 1

        def each(topic: str, number: int) -> bytes:
            asked = request.number("q")
            partition = self._partition(topic, number)
            if partition is None:
                return struct.pack(">ihqq", number, UNKNOWN_PARTITION, -1, -1)
            if asked == -2:
                at, offset = -1, partition.begin
            elif asked == -1:
                at, offset = -1, partition.stable_end if stable else partition.end
            else:
                at, offset = partition.at_time(asked)
            return struct.pack(">ihqq", number, 0, at, offset)

        return struct.pack(">i", 0) + self._by_topic(request, each)

    def _coordinator(self, request: Reading) -> bytes:
        request.text()
        return struct.pack(">hi", 0, 1) + text("127.0.0.1") + struct.pack(">i", self.port)

    def _commit_offsets(self, request: Reading) -> bytes:
        group = request.text()
        request.number("i"), request.text(), request.number("q")

        def each(topic: str, number: int) -> bytes:
            offset = request.number("q")
            request.text()
            if not self.refuse_commits:
                self.committed[group, topic, number] = offset
            return struct.pack(">ih", number, self.refuse_commits)

        return self._by_topic(request, each)

    def _fetch_offsets(self, request: Reading) -> bytes:
        group = request.text()
        count = request.count()
        asked = [
            (request.text(), [request.number("i") for _ in range(request.count())])
            for _ in range(count)
        ]
        if count < 0:
            own = [place[1:] for place in self.committed if place[0] == group]
            asked = [(name, [n for topic, n in own if topic == name]) for name, _ in own]
            asked = [*dict(asked).items()]

        def each(topic: str, number: int) -> bytes:
            offset = self.committed.get((group, topic, number), -1)
            return struct.pack(">iq", number, offset) + text("") + struct.pack(">h", 0)

        topics = (
            text(name) + array(each(name, number) for number in numbers) for name, numbers in asked
        )
        return array(topics) + struct.pack(">h", 0)

    def _groups(self) -> set[str]:
        return {group for group, _, _ in self.committed}

    def _list_groups(self, request: Reading) -> bytes:
        del request
        groups = (text(group) + text("consumer") for group in sorted(self._groups()))
        return struct.pack(">h", 0) + array(groups)

    def _describe_groups(self, request: Reading) -> bytes:
        def each(group: str) -> bytes:
            idle = "Empty" if group in self._groups() else "Dead"
            state = "Stable" if group in self.joined else idle
            words = (group, state, "consumer", "")
            return struct.pack(">h", 0) + b"".join(map(text, words)) + array(())

        return array([each(request.text()) for _ in range(request.count())])


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    broker: KafkaBroker

    def __init__(self, *args: object) -> None:
        self.sessions: set[_Session] = set()
        super().__init__(*args)  # pyright: ignore

    def close_sessions(self) -> None:
        for session in list(self.sessions):
            with suppress(OSError):
                session.request.shutdown(2)


class _Session(socketserver.StreamRequestHandler):
    """One client's connection."""

    server: _Server  # pyright: ignore
    disable_nagle_algorithm = True

    def setup(self) -> None:
        if tls := self.server.broker.tls:
            # The handshake is the first read's, where a client that does not like it is expected.
            self.request = tls.wrap_socket(
                self.request, server_side=True, do_handshake_on_connect=False
            )
        super().setup()

    def handle(self) -> None:
        self.server.sessions.add(self)
        trusted = self.server.broker.users is None
        try:
            while head := self.rfile.read(4):
                request = Reading(self.rfile.read(*struct.unpack(">i", head)))
                api, version, number = (request.number(form) for form in "hhi")
                request.text()
                trusted, body = self._answered(api, version, request, trusted)
                self.wfile.write(struct.pack(">ii", len(body) + 4, number) + body)
        except (OSError, struct.error):
            pass
        finally:
            self.server.sessions.discard(self)

    def _answered(
        self, api: int, version: int, request: Reading, trusted: bool
    ) -> tuple[bool, bytes]:
        if api == API_VERSIONS:
            ranges = (struct.pack(">hhh", key, served, served) for key, served in VERSIONS.items())
            error = UNSUPPORTED_VERSION if version != VERSIONS[api] else 0
            return trusted, struct.pack(">h", error) + array(ranges)
        if api == SASL_HANDSHAKE:
            return trusted, struct.pack(">h", 0) + array([text("PLAIN")])
        users = self.server.broker.users
        if api == SASL_AUTHENTICATE:
            _, name, password = request.blob().decode().split("\0")
            if users is not None and users.get(name) != password:
                refusal = struct.pack(">h", AUTHENTICATION_FAILED) + text(
                    "Unknown name or password"
                )
                return False, refusal + blob(b"")
            return True, struct.pack(">h", 0) + text(None) + blob(b"")
        if not trusted:
            raise OSError
        return trusted, self.server.broker.answer(api, request)
