"""The service's SDK with this project's errors, patience, and limits.

The SDK builds, signs and sends requests. What it does with answers is replaced in one place: a
refusal leaves it as `ServiceRefusal` at once, so that `retrying.ask` alone decides how long a
request is repeated (the SDK would try ten times, for minutes, inside a sensor's tick), and a body
is decompressed within a limit.

It is imported where a request is made, because the SDK takes half a second to load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import aliyun.log.proto  # noqa: TID253
from aliyun.log import LogClient  # noqa: TID253
from aliyun.log.logexception import LogException  # noqa: TID253
from aliyun.log.util import Util  # noqa: TID253
from google.protobuf.message import DecodeError

from dagster_leasehold.lease_store.errors import (
    LogCorrupt,
    PayloadDamaged,
    PayloadTooLarge,
    SourceRefused,
)
from dagster_leasehold.shard_sources.decompression import Codec, decompress
from dagster_leasehold.shard_sources.loghub.credentials import CredentialsProvider
from dagster_leasehold.shard_sources.loghub.failures import RequestSubject, ServiceRefusal, failure
from dagster_leasehold.shard_sources.loghub.lineage import ListedShard
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.retrying import ask

TIMEOUT_S = (5.0, 20.0)
"""To connect, and to wait for bytes."""
BODY_BYTES_MAX = 256 * 1024 * 1024
"""The service sends about 10 MiB at once; more than this is none of its answers."""
_CODECS = {
    "lz4": Codec.LZ4_BLOCK,
    "zstd": Codec.ZSTD,
    "deflate": Codec.GZIP,
    "gzip": Codec.GZIP,
    "": Codec.NONE,
}
_OK = 200
# What the SDK's own annotations leave out: the messages of the wire, and the client's inside.
_MESSAGES: Any = aliyun.log.proto
_SdkClient: Any = LogClient


@dataclass(frozen=True, slots=True)
class Pulled:
    """LogGroups in order, and the service's cursor after the last of them."""

    groups: tuple[Any, ...]
    next_cursor: str


class _Wire(_SdkClient):
    """The SDK's client, with its own treatment of answers replaced."""

    def __init__(self, endpoint: str, **arguments: Any) -> None:
        super().__init__(endpoint, **arguments)
        # The SDK takes an address for a name where a scheme or port stands beside it, and would
        # look for `project.127.0.0.1`.
        self._isRowIp = Util.is_row_ip(self._logHost)

    def _sendRequest(  # noqa: N802, PLR0917 - the SDK's name and arguments
        self,
        method: str,
        url: str,
        params: Any,
        body: Any,
        headers: Any,
        respons_body_type: str = "json",
    ) -> tuple[Any, Mapping[str, str]]:
        try:
            status, content, received = self._getHttpResponse(method, url, params, body, headers)
        except LogException as unreachable:
            raise ServiceRefusal(unreachable.get_error_code()) from None
        # The case of a header's name is the server's choice.
        answered = {str(name).lower(): str(value) for name, value in received.items()}
        if status != _OK:
            raise _refusal(status, content)
        if respons_body_type != "json":
            return content, answered
        try:
            return json.loads(content) if content else None, answered
        except ValueError:
            raise ServiceRefusal("BadResponse", status) from None


def _refusal(status: int, content: bytes) -> ServiceRefusal:
    """Return the refusal that a body tells of, be it the service's or a proxy's."""
    try:
        body = json.loads(content)
        return ServiceRefusal(str(body["errorCode"]), status, str(body.get("errorMessage", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceRefusal(f"HTTP status {status}", status)


class LogHubClient:
    """Requests for one logstore, with answers as values; for one thread.

    Args:
        options: which logstore, and how to reach it.
        credentials: signs requests.
    """

    def __init__(self, options: LogHubOptions, credentials: CredentialsProvider) -> None:
        self._options = options
        self._credentials = credentials
        self._subject = RequestSubject(f"{options.project}/{options.logstore}", options.endpoint)
        self._wire = _Wire(
            options.endpoint,
            # The SDK would look up this host's address for records that are written.
            source="leasehold",
            auth_version=options.auth_version,
            region=options.region,
            credentials_provider=credentials,
        )
        self._wire.timeout = TIMEOUT_S

    def shards(self) -> list[ListedShard]:
        """List all shards that the service knows."""
        answer = self._ask(lambda wire: wire.list_shards(*self._place))
        return [
            ListedShard(
                int(row["shardID"]),
                str(row["inclusiveBeginKey"]).lower(),
                str(row["exclusiveEndKey"]).lower(),
                str(row["status"]).lower() == "readonly",
            )
            for row in answer.get_shards_info()
        ]

    def cursor(self, shard: str, at: str | int) -> str:
        """The cursor at `begin`, `end`, or a time in whole seconds since 1970."""
        answer = self._ask(
            lambda wire: wire.get_cursor(*self._place, shard, at), shard=shard, cursor=str(at)
        )
        return str(answer.get_cursor())

    def cursor_time(self, shard: str, cursor: str) -> int:
        """The second since 1970 when the service received the LogGroup at a cursor."""
        answer = self._ask(
            lambda wire: wire.get_cursor_time(*self._place, shard, cursor),
            shard=shard,
            cursor=cursor,
        )
        return int(answer.get_cursor_time())

    def pull(self, shard: str, cursor: str, end: str | None, count: int) -> Pulled:
        """Up to `count` LogGroups from a cursor on, before `end`.

        Raises:
            LogCorrupt: the answer cannot be read.
        """
        compression = "" if self._options.compression == "none" else self._options.compression
        params = {"type": "log", "cursor": cursor, "count": str(count)}
        if end is not None:
            params["end_cursor"] = end
        headers = {"Accept": "application/x-protobuf", "Accept-Encoding": compression}
        body, answered = self._ask(
            lambda wire: wire._send(  # pyright: ignore[reportPrivateUsage]
                "GET",
                self._options.project,
                None,
                f"/logstores/{self._options.logstore}/shards/{shard}",
                dict(params),
                dict(headers),
                "binary",
            ),
            shard=shard,
            cursor=cursor,
        )
        try:
            groups = _groups(body, answered)
            return Pulled(groups, answered["x-log-cursor"])
        except (PayloadDamaged, PayloadTooLarge, DecodeError, KeyError, ValueError) as error:
            reason = type(error).__name__
            raise LogCorrupt(
                f"What the log service sent from {cursor} on of shard {shard} of "
                f"{self._subject.logstore} cannot be read ({reason})."
            ) from None

    def checkpoints(self, group: str) -> list[Mapping[str, Any]]:
        """The checkpoints of a consumer group: `shard`, `checkpoint`, `updateTime`, `consumer`."""
        answer = self._ask(lambda wire: wire.get_check_point(*self._place, group))
        return list(answer.get_consumer_group_check_points())

    def consumer_groups(self) -> dict[str, int]:
        """The names of the logstore's consumer groups, and their timeouts in seconds."""
        answer = self._ask(lambda wire: wire.list_consumer_group(*self._place))
        return {
            str(each.get_consumer_group_name()): int(each.get_timeout())
            for each in answer.get_consumer_groups()
        }

    def create_consumer_group(self, group: str, timeout_s: int, *, ordered: bool) -> None:
        """Create a consumer group without checkpoints."""
        self._ask(lambda wire: wire.create_consumer_group(*self._place, group, timeout_s, ordered))

    def set_checkpoint(self, group: str, shard: str, cursor: str) -> None:
        """Move a checkpoint of a consumer group, held or not."""
        self._ask(
            lambda wire: wire.update_check_point(*self._place, group, shard, cursor),
            shard=shard,
            cursor=cursor,
        )

    @property
    def _place(self) -> tuple[str, str]:
        return self._options.project, self._options.logstore

    def _ask(self, call: Callable[[Any], Any], *, shard: str = "", cursor: str = "") -> Any:
        subject = replace(self._subject, shard=shard, cursor=cursor)

        def once() -> Any:
            try:
                return call(self._wire)
            except ServiceRefusal as refusal:
                raise failure(refusal, subject) from None

        try:
            return ask(once)
        except SourceRefused:
            # Temporary credentials might have been replaced since they were fetched.
            if not self._credentials.renewed():
                raise
            return ask(once)


def _groups(body: bytes, answered: Mapping[str, str]) -> tuple[Any, ...]:
    """The LogGroups of a body.

    Raises:
        PayloadDamaged, PayloadTooLarge, DecodeError, KeyError, ValueError: it is not whole.
    """
    size = int(answered["x-log-bodyrawsize"])
    count = int(answered["x-log-count"])
    if size == 0 and count == 0:
        return ()
    codec = _CODECS[answered.get("x-log-compresstype", "").lower()]
    # Values are bytes in the raw form of the messages: a log can hold any.
    message = _MESSAGES.LogGroupListRaw()
    message.ParseFromString(decompress(body, codec, BODY_BYTES_MAX, size=size))
    if len(message.LogGroups) != count:
        raise ValueError(count)
    return tuple(message.LogGroups)
