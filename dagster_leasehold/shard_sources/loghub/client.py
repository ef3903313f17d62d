"""The service's SDK, with this project's errors, retries and limits.

The SDK builds, signs and sends requests. Its handling of answers is replaced: the SDK would retry
a request ten times, for minutes, inside a sensor's tick. Here a refusal is raised at once, only
`retrying.ask` retries, and a body is decompressed within a limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aliyun.log.proto  # noqa: TID253
from aliyun.log import LogClient  # noqa: TID253
from aliyun.log.logexception import LogException  # noqa: TID253
from aliyun.log.util import Util  # noqa: TID253
from google.protobuf.message import DecodeError

from dagster_leasehold.lease_store.errors import LogCorrupt, SourceRefused, shown
from dagster_leasehold.shard_sources.loghub.credentials import CredentialsProvider
from dagster_leasehold.shard_sources.loghub.decompression import decompress
from dagster_leasehold.shard_sources.loghub.failures import ServiceRefusal, failure
from dagster_leasehold.shard_sources.loghub.lineage import ListedShard
from dagster_leasehold.shard_sources.loghub.options import LogHubOptions
from dagster_leasehold.shard_sources.retrying import ask

TIMEOUT_S = (5.0, 20.0)
"""The time to connect, and the time between received bytes."""
BODY_BYTES_MAX = 256 * 1024 * 1024
"""Larger than any answer: the service sends about 10 MiB at once."""
_OK = 200
# The SDK's annotations lack its messages and the internals of its client.
_MESSAGES: Any = aliyun.log.proto
_SdkClient: Any = LogClient


@dataclass(frozen=True, slots=True)
class Pull:
    """LogGroups in order, and the service's cursor after the last one."""

    groups: tuple[Any, ...]
    next_cursor: str


class _Wire(_SdkClient):
    """The SDK's client with our handling of answers."""

    def __init__(self, endpoint: str, **arguments: Any) -> None:
        super().__init__(endpoint, **arguments)
        # The SDK does not recognize an IP address with a scheme or port, and would look up
        # `project.127.0.0.1`.
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
        answer_headers = {str(name).lower(): str(value) for name, value in received.items()}
        if status != _OK:
            raise _refusal(status, content)
        if respons_body_type != "json":
            return content, answer_headers
        try:
            return json.loads(content) if content else None, answer_headers
        except ValueError:
            raise ServiceRefusal("BadResponse", status) from None


def _refusal(status: int, content: bytes) -> ServiceRefusal:
    """Return the refusal in the body of an answer from the service or a proxy."""
    try:
        body = json.loads(content)
        return ServiceRefusal(str(body["errorCode"]), status, str(body.get("errorMessage", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceRefusal(f"HTTP status {status}", status)


class LogHubClient:
    """Requests about one logstore, for one thread."""

    def __init__(self, options: LogHubOptions, credentials: CredentialsProvider) -> None:
        self._options = options
        self._credentials = credentials
        self._wire = _Wire(
            options.endpoint,
            # Otherwise the SDK looks up this host's address, for records that it writes.
            source="leasehold",
            auth_version=options.auth_version,
            region=options.region,
            credentials_provider=credentials,
        )
        self._wire.timeout = TIMEOUT_S

    def shards(self) -> list[ListedShard]:
        """Return all shards that the service lists."""
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
        """Return the cursor at `begin`, `end`, or a time in seconds since 1970."""
        answer = self._ask(
            lambda wire: wire.get_cursor(*self._place, shard, at), shard=shard, cursor=str(at)
        )
        return str(answer.get_cursor())

    def cursor_time(self, shard: str, cursor: str) -> int:
        """Return when the service received the LogGroup at a cursor, in seconds since 1970."""
        answer = self._ask(
            lambda wire: wire.get_cursor_time(*self._place, shard, cursor),
            shard=shard,
            cursor=cursor,
        )
        return int(answer.get_cursor_time())

    def pull(self, shard: str, cursor: str, end: str | None, count: int) -> Pull:
        """Return up to `count` LogGroups from a cursor on, before `end`; or raise LogCorrupt."""
        compression = "" if self._options.compression == "none" else self._options.compression
        params = {"type": "log", "cursor": cursor, "count": str(count)}
        if end is not None:
            params["end_cursor"] = end
        headers = {"Accept": "application/x-protobuf", "Accept-Encoding": compression}
        body, answer_headers = self._ask(
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
            groups = _groups(body, answer_headers)
            return Pull(groups, answer_headers["x-log-cursor"])
        except (DecodeError, KeyError, ValueError) as error:
            raise LogCorrupt(
                f"The log service's records from {cursor} on of shard {shard} of "
                f"{'/'.join(self._place)} cannot be read ({type(error).__name__}: {shown(error)})."
            ) from None

    def checkpoints(self, group: str) -> list[Mapping[str, Any]]:
        """Return a group's checkpoints: `shard`, `checkpoint`, `updateTime`, `consumer`."""
        answer = self._ask(lambda wire: wire.get_check_point(*self._place, group))
        return list(answer.get_consumer_group_check_points())

    def consumer_groups(self) -> dict[str, int]:
        """Return the timeouts of the logstore's consumer groups, in seconds by name."""
        answer = self._ask(lambda wire: wire.list_consumer_group(*self._place))
        return {
            str(each.get_consumer_group_name()): int(each.get_timeout())
            for each in answer.get_consumer_groups()
        }

    def create_consumer_group(self, group: str, timeout_s: int, *, ordered: bool) -> None:
        """Create a consumer group without checkpoints."""
        self._ask(lambda wire: wire.create_consumer_group(*self._place, group, timeout_s, ordered))

    def set_checkpoint(self, group: str, shard: str, cursor: str) -> None:
        """Set a checkpoint of a consumer group, even if a consumer holds the shard."""
        self._ask(
            lambda wire: wire.update_check_point(*self._place, group, shard, cursor),
            shard=shard,
            cursor=cursor,
        )

    @property
    def _place(self) -> tuple[str, str]:
        return self._options.project, self._options.logstore

    def _ask(self, call: Callable[[Any], Any], *, shard: str = "", cursor: str = "") -> Any:
        def once() -> Any:
            try:
                return call(self._wire)
            except ServiceRefusal as refusal:
                raise failure(
                    refusal, "/".join(self._place), self._options.endpoint, shard, cursor
                ) from None

        try:
            return ask(once)
        except SourceRefused:
            # Temporary credentials were possibly replaced after they were fetched.
            if not self._credentials.renewed():
                raise
            return ask(once)


def _groups(body: bytes, answer_headers: Mapping[str, str]) -> tuple[Any, ...]:
    """Return the LogGroups of a body; raise an error of its parsers if it is incomplete."""
    size = int(answer_headers["x-log-bodyrawsize"])
    count = int(answer_headers["x-log-count"])
    if size == 0 and count == 0:
        return ()
    codec = answer_headers.get("x-log-compresstype", "").lower()
    # The raw form of the messages has bytes as values, because a log can contain any.
    message = _MESSAGES.LogGroupListRaw()
    message.ParseFromString(decompress(body, codec, size=size, limit=BODY_BYTES_MAX))
    if len(message.LogGroups) != count:
        raise ValueError(f"{count} LogGroups are declared")
    return tuple(message.LogGroups)
