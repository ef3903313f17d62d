"""A logstore on the server of the wire protocol in `tests/sls_server`; written with the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.loghub.source import LogHub
from dagster_leasehold.shard_sources.source import ShardSource
from tests.ports import free_port
from tests.sls_server.server import SlsServer
from tests.sources.world import NewRecord, Notion, SourceWorld

PROJECT, LOGSTORE = "project", "logstore"
VALUE_FIELD, KEY_FIELD = "content", "key"


def plain_client(endpoint: str) -> Any:
    """Return the unmodified SDK, for an endpoint that is an address."""
    from aliyun.log import LogClient

    client: Any = LogClient(endpoint, "LTAItest", "secret-of-test", source="test")
    # It does not see an address beside a port, and would put the project's name before it.
    client._isRowIp = True
    return client


def written_with_sdk(
    client: Any,
    hash_: str,
    logs: Sequence[tuple[datetime, Sequence[tuple[str, bytes]]]],
    *,
    topic: str = "",
    source: str = "10.0.0.1",
    tags: Sequence[tuple[str, str]] = (),
) -> None:
    """One LogGroup through the SDK, to the shard that a hash belongs to."""
    from aliyun.log import LogItem, PutLogsRequest

    items = [
        LogItem(
            timestamp=int(at.timestamp()), time_nano_part=at.microsecond * 1000, contents=[*fields]
        )
        for at, fields in logs
    ]
    client.put_logs(
        PutLogsRequest(PROJECT, LOGSTORE, topic, source, items, hashKey=hash_, logtags=list(tags))
    )


class LogHubWorld(SourceWorld):
    lacks: ClassVar[Mapping[Notion, str]] = {
        Notion.GROWTH: "a new shard always has parents",
        Notion.COUNTED_LAG: "the service numbers LogGroups, not records",
    }
    foreign_cursors: ClassVar[Sequence[str]] = (
        *SourceWorld.foreign_cursors,
        "12.0",
        "12.x",
        "012",
        "MTIzNDU2",
    )
    source: LogHub

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = SlsServer(PROJECT)
        self.logstore = self.server.create(LOGSTORE)
        self.source = self.source_at(self.server.endpoint)
        self.writer = plain_client(self.server.endpoint)

    def source_at(self, endpoint: str, **options: Any) -> LogHub:
        given = {
            "endpoint": endpoint,
            "project": PROJECT,
            "logstore": LOGSTORE,
            "value_field": VALUE_FIELD,
            "key_field": KEY_FIELD,
            "credentials_uri": self.server.credentials_uri,
        }
        return LogHub(LogHubOptions.model_validate(given | options))

    def close(self) -> None:
        self.server.close()

    def put(self, shard: ShardId, records: Sequence[NewRecord]) -> None:
        for record in records:
            fields = [(name, text.encode()) for name, text in record.attributes.items()]
            fields += [(KEY_FIELD, record.key)] if record.key is not None else []
            fields += [(VALUE_FIELD, record.value)] if record.value is not None else []
            assert record.at is not None
            # A record arrives when it was made, so that cases can search by time.
            at = record.at
            self.server.received_at = at.timestamp
            written_with_sdk(self.writer, self.logstore.shard(shard).begin, [(at, fields)])

    def split(self, shard: ShardId) -> tuple[ShardId, ShardId]:
        entry = self.logstore.shard(shard)
        middle = f"{(int(entry.begin, 16) + int(entry.end, 16)) // 2:032x}"
        answer = self.writer.split_shard(PROJECT, LOGSTORE, int(shard), middle)
        _, low, high = answer.get_shards_info()
        return ShardId(str(low["shardID"])), ShardId(str(high["shardID"]))

    def merge(self, first: ShardId, second: ShardId) -> ShardId:
        answer = self.writer.merge_shard(PROJECT, LOGSTORE, int(min(first, second, key=int)))
        return ShardId(str(answer.get_shards_info()[-1]["shardID"]))

    def trim(self, shard: ShardId) -> None:
        self.fill(shard)
        self.logstore.shard(shard).expire(3)

    def forget(self, shard: ShardId) -> None:
        del self.logstore.shards[int(shard)]

    def damage(self, shard: ShardId) -> None:
        self.logstore.shard(shard).damaged = True

    def unreachable(self) -> ShardSource:
        return self.source_at(f"http://127.0.0.1:{free_port()}")

    def throttle(self, requests: int | None) -> None:
        self.server.throttled = requests

    def wrong_credentials(self) -> ShardSource:
        other = SlsServer(PROJECT)
        self._others = other
        other.role = ("LTAItest", "another-secret", "")
        return self.source_at(self.server.endpoint, credentials_uri=other.credentials_uri)

    def change_credentials(self) -> None:
        self.server.keys = {"STS.new": ("new-secret", "new-token")}

    def learn_credentials(self) -> None:
        self.server.role = ("STS.new", "new-secret", "new-token")

    def secrets(self) -> Sequence[str]:
        return ("secret-of-test", "another-secret", "new-secret", "new-token", "LTAItest")
