"""The soak in a small form: every incident once in each shape, and nothing stalls."""

from __future__ import annotations

import pytest

from tests.simulation.soak.script import BUILDERS, SMALL
from tests.simulation.soak.whole import soak
from tests.simulation.soak.world import Pace, Shape

DAYS = 1.5
PACE = Pace(quiet_s=900.0, traffic_s=7_200.0, quiet_appends=8)


@pytest.mark.long
@pytest.mark.parametrize("shape", Shape)
def test_no_shard_stalls_although_every_part_fails_once(shape: Shape) -> None:
    outcome = soak(shape, DAYS, SMALL, PACE)
    assert outcome.findings == ()
    assert outcome.incidents >= len(BUILDERS)
    # Without these figures there was nothing to find.
    assert outcome.commits > 80
    assert outcome.commits_while_following > 20
    assert outcome.hook_calls > 50
    assert outcome.hours > 20
    assert outcome.gaps >= 2
    assert outcome.late_records
    assert outcome.entries_kept_max > 20
