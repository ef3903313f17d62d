"""Rows that cannot be built unsafe, and their derived values."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.lease_store.group_rows import Node, Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, BatchState, batch_id
from dagster_leasehold.lease_store.shard_rows import Tenure

ROOT = Path(__file__).parents[3]


def test_a_holder_stops_before_it_can_be_evicted() -> None:
    timing = Timing()
    assert (timing.timeout_s, timing.trust_s) == (20.0, 15.0)
    assert timing.beat_s * 3 == pytest.approx(timing.timeout_s)


@pytest.mark.parametrize(
    ("timeout_s", "beat_s"),
    [(20, 7), (20, 20), (20, 0), (20, -1), (0, 0), (-3, -1), (86_401, 1), (float("nan"), 1)],
)
def test_unsafe_durations_are_refused(timeout_s: float, beat_s: float) -> None:
    with pytest.raises(InvalidSetting, match="use"):
        Timing(timeout_s=timeout_s, beat_s=beat_s)


def test_a_third_of_any_timeout_is_allowed() -> None:
    for timeout_s in (0.1, 1.0, 7.0, 20.0, 86_400.0):
        assert Timing(timeout_s, timeout_s / 3).trust_s < timeout_s


def test_a_node_is_a_member_while_it_has_an_incarnation() -> None:
    assert Node(NodeName("a"), 1, "incarnation").member
    assert not Node(NodeName("a"), 1, "").member


def test_a_batch_has_the_same_id_at_every_attempt() -> None:
    batches = [
        Batch(ShardId("x"), 3, "0", "5", BatchState.INTENT, epoch, "run", NodeName("a"), attempt)
        for epoch, attempt in ((1, "one"), (2, "two"))
    ]
    assert {batch.batch_id for batch in batches} == {batch_id(ShardId("x"), 3)} == {"x.3"}


def test_a_tenure_cannot_be_changed() -> None:
    tenure = Tenure(GroupKey.parse("g", "s"), ShardId("x"), NodeName("a"), 1, "run")
    with pytest.raises(FrozenInstanceError):
        tenure.epoch = 2  # type: ignore[misc]


def test_importing_the_package_loads_no_driver_and_no_migrations() -> None:
    program = (
        "import sys, lease_store\n"
        "heavy = {'pymysql', 'alembic', 'sqlalchemy', 'pydantic', 'dagster', 'pyspark'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import dagster_leasehold.lease_store.sql_store\n"
        "print(sorted({'pymysql', 'alembic', 'dagster', 'pyspark'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == "[]\n[]\n"
