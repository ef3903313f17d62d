"""Kill a run at every step of passing a gap: it is recorded once, and the rest is read once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.assets.consuming.consumption_report import StopReason
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.verification import verify
from tests.failpoints import Failpoint
from tests.ledger_output import ledger_records
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

pytestmark = pytest.mark.long

SHARD = ShardId("0")
POINTS = (Failpoint.BEFORE_GAP, Failpoint.IN_RECORD_GAP, Failpoint.AFTER_GAP)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_a_gap_is_recorded_and_skipped_once(tmp_path: Path, point: Failpoint) -> None:
    """Method: records 10 to 15 are gone; SIGKILL; the next run replaces the dead one."""
    home = ConsumedHome(tmp_path / "home", shards=1)
    home.append(10)
    home.consume("run-1")
    home.append(5)
    home.log.retain(SHARD, "15")
    home.append(5)
    group = home.store.pulse(KEY).group
    home.store.update_group(replace(group, gap_policy=GapPolicy.BEGIN), observer="test")
    point.kills("-m", __name__, str(tmp_path / "home"))
    assert verify(home.store, KEY) == []
    buried = home.store.open_tenure(KEY, SHARD, NODE, "grave", replaces="killed")
    assert isinstance(buried, Opened)
    home.store.close_tenure(buried.tenure, reason="test")

    report = home.consume("next")[SHARD]
    assert (report.stopped, report.records) == (StopReason.CAUGHT_UP, 5)
    assert [(gap.start, gap.end) for gap in home.store.gaps(KEY)] == [("10", "15")]
    rows = [
        value
        for part in ledger_records(home.store, KEY, home.place, SHARD)
        for value in part.column("value").to_pylist()
    ]
    assert rows == [b"0:%d" % number for number in (*range(10), *range(15, 20))]
    assert verify(home.store, KEY) == []
    home.store.close()


if __name__ == "__main__":
    ConsumedHome(Path(sys.argv[1])).consume("killed")
