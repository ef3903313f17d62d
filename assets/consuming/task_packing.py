"""Pure rules that share the ranges of a sweep among the tasks of one Spark job."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from dagster_leasehold.shard_sources.source import ReadRange

RECORDS_PER_TASK_MIN = 10_000
"""A task costs as much as reading this many records."""


def pack(ranges: Sequence[ReadRange], tasks_max: int) -> list[tuple[ReadRange, ...]]:
    """Share ranges among at most `tasks_max` tasks: longest first, to the task with the least.

    A range of unknown length counts as long.
    """
    sizes = [range_.records for range_ in ranges if range_.records > 0]
    unknown = max([RECORDS_PER_TASK_MIN, *sizes])
    sized = [(range_.records or unknown, range_) for range_ in ranges]
    worth = max(1, sum(size for size, _ in sized) // RECORDS_PER_TASK_MIN)
    tasks = max(1, min(tasks_max, len(sized), worth))
    bins: list[list[ReadRange]] = [[] for _ in range(tasks)]
    loads = [(0, index) for index in range(tasks)]
    for size, range_ in sorted(sized, key=lambda item: (-item[0], item[1].shard)):
        load, index = heapq.heappop(loads)
        bins[index].append(range_)
        heapq.heappush(loads, (load + size, index))
    return [tuple(bin_) for bin_ in bins if bin_]
