"""The same records at the same moments, in each kind of log that a contestant reads.

Record n of shard s has the value `s:n` and some padding. All logs are served by this process: a
topic of librdkafka's mock broker, a logstore of the tests' server, a folder of JSON lines.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from tests.sls_server.server import SlsServer

SHARDS = 4
APPEND_S = 0.25
RECORDS = 25
"""Records of each shard in one append; librdkafka's mock keeps 5 MB of each partition."""
TOPIC = LOGSTORE = "demo"
PROJECT = "project"
VALUE_BYTES = 200


def value_of(shard: int, number: int) -> bytes:
    """Return the value of a record."""
    return f"{shard}:{number}:".encode().ljust(VALUE_BYTES, b".")


def record_of(value: bytes) -> tuple[int, int]:
    """Return the shard and the number that a value names."""
    shard, number, _ = value.split(b":", 2)
    return int(shard), int(number)


class Log(Protocol):
    """A log with `SHARDS` shards."""

    address: str

    def append(self, portions: list[list[bytes]]) -> None:
        """Append to each shard its portion; return once readers see them."""
        ...

    def close(self) -> None:
        """End its server."""
        ...


class KafkaLog(Log):
    """A topic of librdkafka's mock broker, which has consumer groups."""

    def __init__(self, _: Path) -> None:
        from tests.sources.worlds.kafka_mock import MockBroker

        self._broker = MockBroker()
        self.address = self._broker.address
        self._broker.producer.list_topics(TOPIC, timeout=10)

    @override
    def append(self, portions: list[list[bytes]]) -> None:
        for shard, values in enumerate(portions):
            for value in values:
                self._broker.producer.produce(TOPIC, value, partition=shard)
        self._broker.flush()

    @override
    def close(self) -> None:
        del self._broker


class LogHubLog(Log):
    """A logstore of the server of the wire protocol, which has consumer groups."""

    def __init__(self, _: Path) -> None:
        from tests.sources.worlds.loghub import plain_client

        self._server = SlsServer(PROJECT)
        self._shards = list(self._server.create(LOGSTORE, SHARDS).shards.values())
        self.address = self._server.endpoint
        self._client = plain_client(self.address)

    @override
    def append(self, portions: list[list[bytes]]) -> None:
        from aliyun.log import LogItem, PutLogsRequest

        for shard, values in zip(self._shards, portions, strict=True):
            now = int(time.time())
            items = [LogItem(now, contents=[("content", value)]) for value in values]
            request = PutLogsRequest(PROJECT, LOGSTORE, "", "", items, hashKey=shard.begin)
            self._client.put_logs(request)

    @override
    def close(self) -> None:
        self._server.close()


class FileLog(Log):
    """A folder of JSON lines; a file appears under its name when it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "input"
        self._folder.mkdir()
        self._drafts = folder / "drafts"
        self._drafts.mkdir()
        self._files = 0
        self.address = str(self._folder)

    @override
    def append(self, portions: list[list[bytes]]) -> None:
        lines = [json.dumps({"value": value.decode()}) for values in portions for value in values]
        draft = self._drafts / f"{self._files:09}.json"
        draft.write_text("\n".join(lines) + "\n", "utf-8")
        draft.rename(self._folder / draft.name)
        self._files += 1

    @override
    def close(self) -> None:
        """Leave the files to their folder."""


class Feed:
    """Appends the same number of records to each shard, again and again, until the block ends.

    Attributes:
        appends: the moment after each append, in monotonic seconds, and the number of records of
            each shard since then.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self.appends: list[tuple[float, int]] = []

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def end(self) -> int:
        """The number of records that each shard has."""
        return self.appends[-1][1] if self.appends else 0

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due += APPEND_S
            numbers = range(self.end, self.end + RECORDS)
            self._log.append([[value_of(s, n) for n in numbers] for s in range(SHARDS)])
            self.appends.append((time.monotonic(), numbers.stop))
