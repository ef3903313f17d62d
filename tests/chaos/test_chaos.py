"""One pass of every incident on real processes: each record is left once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.incidents import (
    AtFailpoint,
    ConnectionsCut,
    DatabaseFreezes,
    DatabaseReadOnly,
    DatabaseStops,
    Incident,
    Processes,
    ReplyLost,
    Resharding,
)
from tests.chaos.rounds import finish, play
from tests.chaos.tally import Tally
from tests.chaos.world import chaos_world, print_logs
from tests.failpoints import Failpoint as At
from tests.integration.lease_store.commit_proxy import Cut

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1_500),
]


def kills(*points: At) -> list[Incident]:
    return [AtFailpoint(point) for point in points]


ROUNDS: list[list[list[Incident]]] = [
    [
        [
            Resharding([]),
            *kills(At.BEFORE_PARTITIONS, At.BEFORE_LAUNCH, At.DURING_BURIAL, At.BEFORE_EMIT),
            *kills(At.IN_COMMIT, At.BEFORE_REPORT, At.AFTER_REPORT, At.IN_MARK_DELIVERED),
            *kills(At.WHILE_WAITING),
        ]
    ],
    [
        [
            AtFailpoint(At.BEFORE_COMMIT, freeze=True),
            Processes("code-b", freeze=True),
            Processes("run-a"),
            Processes("daemon-a"),
        ],
        [
            Processes("run-b", freeze=True),
            Processes("daemon-b", freeze=True),
            Processes("code-a"),
            AtFailpoint(At.WHILE_WAITING, freeze=True),
            DatabaseReadOnly(),
        ],
        [DatabaseStops(crash=True), ReplyLost(Cut.BEFORE)],
        [DatabaseStops(crash=False), Processes("agent-b")],
        [ConnectionsCut(), Processes("agent-b", freeze=True), Processes("server-b")],
        [DatabaseFreezes(), ReplyLost(Cut.AFTER)],
    ],
]


def test_every_incident_leaves_each_record_once(tmp_path: Path) -> None:
    """Method: a steady writer; rounds of incidents; after each round, ledger and output are
    checked.

    Steps that are not killed here are killed where it is cheaper: `test_crash_windows.py` for the
    steps of a batch, `test_planning_killed.py` for the steps of a plan.
    """
    tally = Tally()
    with chaos_world(tmp_path / "home") as world:
        try:
            for waves in ROUNDS:
                play(world, tally, waves)
            finish(world, tally)
        except BaseException:
            print_logs(world)
            raise
        finally:
            print(tally.table())  # noqa: T201
    assert tally.violations == []
    assert tally.missed == []
