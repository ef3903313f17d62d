"""The state of the service: logstores, their shards with LogGroups, and consumer groups."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

HASH_END = "f" * 32
FIRST_NUMBER = 1_447_299_606_896_632_356


class ServiceError(Exception):
    """A refusal as the service answers it."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message


def encoded(number: int) -> str:
    return base64.b64encode(str(number).encode()).decode()


@dataclass(frozen=True)
class StoredGroup:
    """A LogGroup as it was written, and when it came, in seconds since 1970."""

    number: int
    received: float
    message: bytes


@dataclass
class Shard:
    """A shard: the hashes `[begin, end)`, and LogGroups numbered from `next_number` on.

    `step` is the distance between two numbers: a service may leave holes.
    """

    number: int
    begin: str
    end: str
    created: int
    step: int = 1
    read_only: bool = False
    damaged: bool = False
    groups: list[StoredGroup] = field(default_factory=list)
    next_number: int = 0

    def __post_init__(self) -> None:
        self.next_number = FIRST_NUMBER + self.number * 1_000_003

    @property
    def first_number(self) -> int:
        return self.groups[0].number if self.groups else self.next_number

    def append(self, message: bytes, received: float) -> None:
        self.groups.append(StoredGroup(self.next_number, received, message))
        self.next_number += self.step

    def expire(self, count: int) -> None:
        del self.groups[:count]

    def at_time(self, seconds: int) -> int:
        for group in self.groups:
            if int(group.received) >= seconds:
                return group.number
        return self.next_number

    def cursor(self, text: str) -> int:
        """The place of a cursor; one before the first group is moved to it."""
        try:
            number = int(base64.b64decode(text, validate=True))
        except ValueError:
            raise ServiceError(400, "InvalidCursor", f"cursor {text} is invalid") from None
        if not 0 <= number <= self.next_number:
            raise ServiceError(400, "InvalidCursor", f"cursor {text} is out of range")
        return max(number, self.first_number)

    def received(self, text: str) -> int:
        """The second in which the group at a cursor arrived."""
        number = self.cursor(text)
        for group in self.groups:
            if group.number >= number:
                return int(group.received)
        raise ServiceError(400, "InvalidCursor", f"cursor {text} is at the end")

    def pull(self, start: int, end: int | None, count: int) -> tuple[list[StoredGroup], int]:
        groups = [
            group
            for group in self.groups
            if group.number >= start and (end is None or group.number < end)
        ][:count]
        return groups, groups[-1].number + self.step if groups else start


@dataclass
class ConsumerGroup:
    """Checkpoints and holders of a consumer group."""

    timeout_s: int
    ordered: bool
    checkpoints: dict[int, str] = field(default_factory=dict)
    updated: dict[int, int] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    beats: dict[str, float] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)


class Logstore:
    """Shards that share all hashes, and consumer groups."""

    def __init__(self, shards: int, clock: Callable[[], float], step: int = 1) -> None:
        self.clock = clock
        self.step = step
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        width = 2**128 // shards
        edges = [f"{width * number:032x}" for number in range(shards)] + [HASH_END]
        self.shards: dict[int, Shard] = {}
        for begin, end in itertools.pairwise(edges):
            self._add(begin, end)

    def _add(self, begin: str, end: str) -> Shard:
        shard = Shard(max(self.shards, default=-1) + 1, begin, end, int(self.clock()), self.step)
        self.shards[shard.number] = shard
        return shard

    def shard(self, name: str) -> Shard:
        if not name.isdecimal() or int(name) not in self.shards:
            raise ServiceError(404, "ShardNotExist", f"shard {name} does not exist")
        return self.shards[int(name)]

    def owner(self, hash_: str) -> Shard:
        for shard in self.shards.values():
            if not shard.read_only and shard.begin <= hash_.lower() < shard.end:
                return shard
        raise ServiceError(400, "InvalidShardHash", hash_)

    def split(self, name: str, at: str) -> list[Shard]:
        shard = self.shard(name)
        if shard.read_only or not shard.begin < at.lower() < shard.end:
            raise ServiceError(400, "ParameterInvalid", "shard cannot be split there")
        shard.read_only = True
        return [shard, self._add(shard.begin, at.lower()), self._add(at.lower(), shard.end)]

    def merge(self, name: str) -> list[Shard]:
        shard = self.shard(name)
        right = [
            each
            for each in self.shards.values()
            if each.begin == shard.end and not each.read_only and not shard.read_only
        ]
        if not right:
            raise ServiceError(400, "ParameterInvalid", "there is no shard to merge with")
        shard.read_only = right[0].read_only = True
        return [shard, right[0], self._add(shard.begin, right[0].end)]

    def consumer_group(self, name: str) -> ConsumerGroup:
        if name not in self.consumer_groups:
            raise ServiceError(404, "ConsumerGroupNotExist", f"{name} does not exist")
        return self.consumer_groups[name]
