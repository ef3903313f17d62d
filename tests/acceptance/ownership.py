"""Measures from the journal how long shards had no owner or no run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.rules.states import ShardState

Rule = Callable[[JournalEntry], bool]


def seconds_without_owner(entries: Iterable[JournalEntry]) -> dict[ShardId, float]:
    """Return the longest time for which each shard of these entries had no owner, in seconds.

    It is infinite for a shard that has none at the end. A transfer begins and ends with an owner.
    """
    return _longest(
        entries,
        ends=lambda entry: entry.to_state is ShardState.NOT_ALLOC,
        begins=lambda entry: entry.to_state is ShardState.ALREADY_ALLOC,
    )


def seconds_without_run(entries: Iterable[JournalEntry]) -> dict[ShardId, float]:
    """Return the longest time for which no run had a shard of these entries open, in seconds."""
    return _longest(
        entries, ends=lambda entry: entry.kind == "close", begins=lambda entry: entry.kind == "open"
    )


def _longest(entries: Iterable[JournalEntry], ends: Rule, begins: Rule) -> dict[ShardId, float]:
    longest: dict[ShardId, float] = {}
    since: dict[ShardId, datetime] = {}
    for entry in entries:
        if entry.shard is None:
            continue
        longest.setdefault(entry.shard, 0.0)
        if ends(entry):
            since.setdefault(entry.shard, entry.at)
        elif begins(entry) and entry.shard in since:
            seconds = (entry.at - since.pop(entry.shard)).total_seconds()
            longest[entry.shard] = max(longest[entry.shard], seconds)
    return longest | dict.fromkeys(since, math.inf)
