"""Kill publishers that hold or quarantine batches: no record is lost, and none is twice there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest

from dagster_leasehold.assets.output.quarantined import quarantined_records
from dagster_leasehold.assets.output.table.group_table import build_publisher
from dagster_leasehold.assets.output.table.publish_locks import take_lock
from dagster_leasehold.assets.places.address import output_place
from dagster_leasehold.assets.publication_check import PublicationCheck
from dagster_leasehold.assets.table_settings import CatalogSettings, TableSettings
from dagster_leasehold.lease_store.publication_rows import PublishLock
from tests.failpoints import Failpoint
from tests.integration.assets.test_publishing_killed import NAME, expected, published
from tests.unit.orchestration.consumed_home import KEY, NODE, ConsumedHome

OnFailure = Literal["hold", "quarantine"]
OF_BOTH = (Failpoint.AFTER_STAGE, Failpoint.IN_COMMIT_PUBLICATION, Failpoint.AFTER_PUBLISH)
POINTS: dict[OnFailure, tuple[Failpoint, ...]] = {
    "hold": (Failpoint.AFTER_HOLD, Failpoint.IN_HOLD_PUBLICATION, *OF_BOTH),
    "quarantine": (Failpoint.BEFORE_QUARANTINE, Failpoint.IN_REWRITE_UNPUBLISHED, *OF_BOTH),
}
CASES = [(on_failure, point) for on_failure, points in POINTS.items() for point in points]
# One case of each kind is short; the others are long.
SHORT = (Failpoint.AFTER_HOLD, Failpoint.IN_REWRITE_UNPUBLISHED)


def publish(home: ConsumedHome, on_failure: OnFailure) -> None:
    lock = take_lock(home.store, KEY, NAME, {NODE: "a-1"})
    assert isinstance(lock, PublishLock)
    check = PublicationCheck("fifth", sql="cursor != '5'", on_failure=on_failure)
    publisher = build_publisher(
        store=home.store,
        key=KEY,
        settings=TableSettings(publication_checks=(check,)),
        catalog=CatalogSettings(),
        place=output_place(home.output),
    )
    while publisher.publish(lock).more:
        pass


@pytest.mark.parametrize(
    ("on_failure", "point"),
    [
        pytest.param(*case, marks=() if case[1] in SHORT else pytest.mark.long, id=str(case))
        for case in CASES
    ],
)
def test_killed_publishers_lose_and_repeat_no_record(
    tmp_path: Path, on_failure: OnFailure, point: Failpoint
) -> None:
    home = ConsumedHome(tmp_path / "home")
    home.append(10)
    home.consume("run-1")
    point.kills("-m", __name__, str(tmp_path / "home"), on_failure)
    publish(home, on_failure)
    home.append(5)
    home.consume("run-2")
    publish(home, on_failure)
    failed = [b"0:5", b"1:5"]
    if on_failure == "hold":
        # Batches of four records each: the second one fails.
        assert published(home) == expected(4)
        for each in home.store.held_output(KEY):
            assert each.lag.records == 11
            home.store.override_hold(KEY, each.shard, observer="test", reason="known")
        publish(home, on_failure)
        assert published(home) == expected(15)
    else:
        assert published(home) == sorted({*expected(15)}.difference(failed))
        records = quarantined_records(home.store, KEY, output_place(home.output))
        assert sorted(record.value or b"" for record in records) == failed
    home.store.close()


if __name__ == "__main__":
    own: OnFailure = "hold" if sys.argv[2] == "hold" else "quarantine"
    publish(ConsumedHome(Path(sys.argv[1])), own)
