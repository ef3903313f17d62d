"""Between what columns hold as JSON or as text, and the values of fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import DataFile
from dagster_leasehold.lease_store.publication_rows import PlannedPublication, PublishedRange
from dagster_leasehold.lease_store.rules.journal_proof import End
from dagster_leasehold.lease_store.shard_summary import Expired
from dagster_leasehold.lease_store.times import stored_time, time_text

FILE_TIMES = ("first_event_time", "last_event_time")


def optional(way: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the same way for a column that may be null."""
    return lambda stored: None if stored is None else way(stored)


def shard_ids(stored: list[str] | None) -> tuple[ShardId, ...]:
    """Return the shards of a list."""
    return tuple(map(ShardId, stored or ()))


def by_shard(stored: Mapping[str, Any]) -> dict[ShardId, Any]:
    """Return values by shard."""
    return {ShardId(shard): value for shard, value in stored.items()}


def pairs(stored: list[list[str]]) -> tuple[tuple[str, ...], ...]:
    """Return pairs, which JSON has as lists."""
    return tuple(map(tuple, stored))


def file_values(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Return files as the ledger's JSON holds them; what is not known of times is left out."""
    # An hour has thousands of files: pendulum would take longer for their times than the database
    # for their rows, and nobody reads them here.
    values = [asdict(file) for file in files]
    for each in values:
        if each["untimed"] is None:
            del each["untimed"]
        for name in FILE_TIMES:
            time = each.pop(name)
            if time is not None:
                each[name] = time.isoformat()
    return values


def files_from(stored: str | list[dict[str, Any]]) -> tuple[DataFile, ...]:
    """Return files from the ledger's JSON, or from its text where that is not decoded yet."""
    rows = json.loads(stored) if isinstance(stored, str) else stored
    return tuple(DataFile(**row | _file_times(row)) for row in rows)


def _file_times(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: datetime.fromisoformat(row[name]) for name in FILE_TIMES if name in row}


def expired_values(expired: Expired) -> dict[str, Any]:
    """Return what has expired as a summary's JSON holds it."""
    return asdict(expired.last) | {
        "batches": expired.batches,
        "records": expired.records,
        "events_since": expired.events_since and time_text(expired.events_since),
        "events_until": expired.events_until and time_text(expired.events_until),
    }


def expired_from(values: Mapping[str, Any]) -> Expired:
    """Return what has expired from a summary's JSON."""
    since, until = values["events_since"], values["events_until"]
    return Expired(
        last=End(values["number"], values["cursor"], values["epoch"]),
        batches=values["batches"],
        records=values["records"],
        events_since=since and stored_time(since),
        events_until=until and stored_time(until),
    )


def planned_from(values: Mapping[str, Any]) -> PlannedPublication:
    """Return a publication from the JSON of a pending one."""
    ranges = (each | {"shard": ShardId(each["shard"])} for each in values["ranges"])
    lists: dict[str, Any] = {
        "ranges": tuple(PublishedRange(**each) for each in ranges),
        "changes": tuple(values["changes"]),
    }
    return PlannedPublication(**{**values, **lists})
