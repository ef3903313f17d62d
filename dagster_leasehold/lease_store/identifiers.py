"""Identifiers, parsed where text enters, before they become paths, keys or SQL.

All have one grammar: an ASCII letter or digit, then up to 63 letters, digits, dots, underscores or
hyphens. Such a text is safe as a MySQL key, a Dagster partition key and a folder that Spark lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from dagster_leasehold.lease_store.errors import InvalidIdentifier

IDENTIFIER_LENGTH_MAX = 64
CURSOR_LENGTH_MAX = 512
"""The most bytes of a cursor."""
_GRAMMAR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


class Identifier(str):
    """A string that matches the grammar of this module; other texts raise InvalidIdentifier."""

    __slots__ = ()
    kind: ClassVar[str] = "identifier"

    def __new__(cls, text: str) -> Self:  # noqa: D102 - see the class
        if isinstance(text, cls):
            return text
        if not _GRAMMAR.fullmatch(text):
            raise InvalidIdentifier(cls.kind, text)
        return super().__new__(cls, text)


class StreamName(Identifier):
    """The name of a stream, which is a logstore or a topic; the column `logstream_sig`.

    Examples:
        >>> StreamName("visits")
        'visits'
    """

    __slots__ = ()
    kind = "stream"


class GroupName(Identifier):
    """The name of a consumer group of a stream; the column `consume_group`."""

    __slots__ = ()
    kind = "consumer group"


class ShardId(Identifier):
    """The id of a shard, also its partition key in Dagster; the column `shard_id`.

    Examples:
        >>> ShardId("shardId-000000000001")
        'shardId-000000000001'
    """

    __slots__ = ()
    kind = "shard"


class NodeName(Identifier):
    """The name of a node, a host that runs code for its shards; the column `worker_instance`.

    Examples:
        >>> NodeName("east")
        'east'
    """

    __slots__ = ()
    kind = "node"


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A consumer group within its stream: the first two columns of every key.

    Examples:
        >>> str(GroupKey.parse("counting", "visits"))
        'visits/counting'
    """

    group: GroupName
    stream: StreamName

    @classmethod
    def parse(cls, group: str, stream: str) -> Self:
        """Parse both names; raise InvalidIdentifier if one does not match the grammar."""
        return cls(GroupName(group), StreamName(stream))

    def __str__(self) -> str:
        return f"{self.stream}/{self.group}"
