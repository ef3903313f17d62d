"""Leasehold next to a consumer group of Kafka, whose worker wakes up in the middle of a write."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.head_to_head import measure
from benchmarks.rivals.strikes import KINDS, Moment, Schedule, Verb

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(300),
]


def test_a_frozen_worker_duplicates_records_of_other_consumers_and_none_of_leasehold(
    tmp_path: Path,
) -> None:
    """Method: both at once; a worker of each is frozen right after it has begun a file."""
    assert KINDS[0] == (Verb.FREEZE, Moment.WRITING)
    schedule = Schedule(seed=1, count=1, calm_s=1.0, slot_s=13.0)
    results = measure(["leasehold", "confluent-kafka"], tmp_path, schedule)
    ours, rival = results["leasehold"][0], results["confluent-kafka"][0]
    assert (ours.lost, ours.doubled) == (0, 0)
    assert ours.records > 0
    assert [seconds for _, seconds in ours.recoveries] != [None]
    assert rival.lost == 0
    assert rival.doubled > 0
