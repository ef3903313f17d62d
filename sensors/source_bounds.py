"""The bounds of many shards, where one that the source cannot answer for does not hide the rest."""

from __future__ import annotations

from collections.abc import Mapping

from lease_store.errors import SourceError, SourceRefused, SourceUnavailable
from lease_store.identifiers import ShardId
from shard_sources.source import ShardBounds, ShardSource, bounds_for

PROBED_MAX = 100


def bounds_of(
    source: ShardSource, cursors: Mapping[ShardId, str | None]
) -> tuple[dict[ShardId, ShardBounds], list[str]]:
    """The bounds that the source knows, and one sentence for each shard that has none.

    Args:
        source: the log.
        cursors: where the reader of each shard stands; None where it has not begun.

    Raises:
        SourceUnavailable, SourceRefused: the source does not answer at all.
    """
    if not cursors:
        return {}, []
    shards = list(cursors)
    try:
        return bounds_for(source, cursors), []
    except (SourceUnavailable, SourceRefused):
        raise
    except SourceError as error:
        if len(shards) == 1:
            return {}, [f"shard {shards[0]} has no bounds: {error}"]
    found: dict[ShardId, ShardBounds] = {}
    sentences: list[str] = []
    for shard in shards[:PROBED_MAX]:
        one, said = bounds_of(source, {shard: cursors[shard]})
        found |= one
        sentences += said
    if len(shards) > PROBED_MAX:
        sentences.append(f"{len(shards) - PROBED_MAX} more shards are looked at later")
    return found, sentences
