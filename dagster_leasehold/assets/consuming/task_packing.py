"""Pure rules that distribute the ranges of a sweep over the tasks of one Spark job.

`range_job` and `frame_job` call them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.source import ReadRange

Divide = Callable[[ReadRange, int], Sequence[ReadRange]]
"""Divides a range of a source; see `DivisibleRanges.divide`."""

RECORDS_PER_TASK_MIN = 10_000
"""A task costs as much as moving this many records through a DataFrame."""
RECORDS_PER_PART_MIN = 50_000
"""A task of `range_job` costs as much as reading and writing this many records. Smaller parts would
also leave small files."""
UNEVEN_MAX = 1.25
"""A range is divided if it is more than this many times as long as a task's fair share."""


def parts_of(
    ranges: Sequence[ReadRange], tasks_max: int, divide: Divide | None
) -> dict[ShardId, list[ReadRange]]:
    """Divide long ranges; return the parts of each shard's range, in order.

    Dividing a range that is longer than a task's fair share lets one busy shard use all cores.

    Args:
        ranges: at most one per shard.
        divide: divides a range of the source; None if its ranges stay whole.
    """
    parts = {range_.shard: [range_] for range_ in ranges}
    if divide is None:
        return parts
    sized = [_sized(range_, divide) for range_ in ranges]
    fair = sum(range_.records for range_ in sized) / tasks_max
    share = max(fair * UNEVEN_MAX, RECORDS_PER_PART_MIN)
    for range_ in sized:
        count = min(tasks_max, round(range_.records / max(fair, RECORDS_PER_PART_MIN)))
        if range_.records > share and count > 1:
            parts[range_.shard] = list(divide(range_, count))
    return parts


def _sized(range_: ReadRange, divide: Divide) -> ReadRange:
    """Return a range with its record count, which the intent of an earlier run lacks."""
    if range_.records:
        return range_
    try:
        return divide(range_, 1)[0]
    except LeaseholdError:
        return range_  # its reader raises a better message


def pack(
    ranges: Sequence[ReadRange], tasks_max: int, records_min: int = RECORDS_PER_TASK_MIN
) -> list[tuple[ReadRange, ...]]:
    """Distribute ranges over at most `tasks_max` tasks, longest first, to the least loaded task.

    A range of unknown length counts as long.

    Args:
        records_min: the average number of records that justifies a task.
    """
    sizes = [range_.records for range_ in ranges if range_.records > 0]
    unknown = max([records_min, *sizes])
    sized = [(range_.records or unknown, range_) for range_ in ranges]
    justified = max(1, sum(size for size, _ in sized) // records_min)
    tasks = max(1, min(tasks_max, len(sized), justified))
    bins: list[list[ReadRange]] = [[] for _ in range(tasks)]
    loads = [(0, index) for index in range(tasks)]
    for size, range_ in sorted(sized, key=lambda item: (-item[0], item[1].shard)):
        load, index = heapq.heappop(loads)
        bins[index].append(range_)
        heapq.heappush(loads, (load + size, index))
    return [tuple(bin_) for bin_ in bins if bin_]
