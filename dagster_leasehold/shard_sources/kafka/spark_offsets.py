"""The offset log of a Structured Streaming query that reads Kafka.

Below its checkpoint location, Spark writes `offsets/N` with the end offsets of batch N before the
batch begins, and `commits/N` when it is complete. The query continues at the offsets of the newest
batch with both files. The output of a batch without the second file was possibly written.

An offset log has a line with its version, a line with metadata, and one line per source, or `-` for
a source without offsets. In version 2 a source's line begins with its id and a colon. A Kafka
source's line has the next offset of each partition by topic: `{"orders":{"0":23,"1":10}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup, listed, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.positions import OFFSET_MAX

VOID = "-"
VERSIONS = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class QueryBatches:
    """The newest complete batch of a query, and a newer one that was begun, if any."""

    committed: int
    open_batch: int | None


def query_batches(offsets: Iterable[str], commits: Iterable[str]) -> QueryBatches:
    """Return the batches of a checkpoint location; raise UnknownGroup if none is complete."""
    batches = {int(name) for name in offsets if name.isascii() and name.isdecimal()}
    committed = {int(name) for name in commits if name.isascii() and name.isdecimal()} & batches
    if not committed:
        raise UnknownGroup(
            "The checkpoint location has no batch with both of its files, offsets/N and commits/N: "
            "name the folder in the query's option checkpointLocation."
        )
    newest = max(batches)
    return QueryBatches(max(committed), newest if newest > max(committed) else None)


def offsets_of(content: str, topic: str) -> dict[ShardId, str]:
    """Return the next offset of each partition of a topic, from the content of an offset log.

    Raises:
        CheckpointRefused: the version is unknown, or two sources read the topic to other offsets.
        UnknownGroup: no source of the query reads the topic.
    """
    version, *lines = content.splitlines() or [""]
    if version not in VERSIONS or not lines:
        raise CheckpointRefused(
            f"The offset log begins with {shown(version)}: only versions 1 and 2 are supported."
        )
    topics: set[str] = set()
    places: list[Mapping[str, int]] = []
    for line in lines[1:]:
        text = line.partition(":")[2] if version == "v2" else line
        source = _topics(text)
        topics |= source.keys()
        if topic in source:
            places.append(source[topic])
    if not places:
        raise UnknownGroup(
            f"The query does not read topic {topic}; the topics in its offset log are: "
            f"{listed(sorted(topics))}."
        )
    if any(place != places[0] for place in places):
        raise CheckpointRefused(
            f"Several sources of the query read topic {topic}, up to different offsets: one group "
            "has one checkpoint for each partition."
        )
    return {ShardId(number): str(offset) for number, offset in places[0].items()}


def _topics(text: str) -> dict[str, dict[str, int]]:
    """Return the offsets of a Kafka source by topic and partition; empty for other sources."""
    if text == VOID:
        return {}
    try:
        source = json.loads(text)
    except ValueError:
        return {}
    return source if _is_kafka(source) else {}


def _is_kafka(source: Any) -> bool:
    return isinstance(source, dict) and all(
        isinstance(partitions, dict) and all(map(_is_offset, partitions.items()))
        for partitions in source.values()
    )


def _is_offset(entry: tuple[Any, Any]) -> bool:
    number, offset = entry
    return number.isdecimal() and type(offset) is int and 0 <= offset <= OFFSET_MAX
