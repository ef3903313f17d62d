"""One pass of every incident on real processes: each record is left once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lease_store.failpoints import Failpoint as At
from tests.chaos.incidents import (
    AtFailpoint,
    ConnectionsCut,
    DatabaseFreezes,
    DatabaseReadOnly,
    DatabaseStops,
    Incident,
    MissedHandOver,
    Processes,
    ReplyLost,
    Resharding,
)
from tests.chaos.rounds import Tally, finish, play
from tests.chaos.world import chaos_world, print_logs
from tests.integration.lease_store.commit_proxy import Cut

pytestmark = [
    pytest.mark.dagster_processes,
    pytest.mark.mariadb,
    pytest.mark.spark,
    pytest.mark.timeout(1_800),
]


def kills(*points: At) -> list[Incident]:
    return [AtFailpoint(point) for point in points]


TAKEN_OVER = AtFailpoint(At.IN_COMPLETE_TRANSFER)
ROUNDS: list[list[Incident]] = [
    kills(At.IN_OPEN_TENURE, At.IN_COMMIT, At.DURING_BURIAL),
    kills(At.AFTER_OPEN, At.AFTER_COMMIT, At.BEFORE_EMIT),
    kills(At.IN_RECORD_INTENTS, At.BEFORE_CLOSE, At.BEFORE_LAUNCH),
    kills(At.AFTER_INTENT, At.AFTER_CLOSE, At.AFTER_BEAT),
    kills(At.DURING_WRITE, At.IN_CLOSE_TENURE, At.AFTER_REPORT),
    kills(At.AFTER_WRITE, At.BEFORE_REPORT, At.IN_MARK_DELIVERED),
    [*kills(At.BEFORE_COMMIT), DatabaseStops(crash=True), ReplyLost(Cut.BEFORE)],
    [Resharding([]), *kills(At.IN_SYNC_SHARDS, At.BEFORE_PARTITIONS), Processes("run-b")],
    [AtFailpoint(At.BEFORE_COMMIT, freeze=True), Processes("code-b", freeze=True)],
    [Processes("code-a"), Processes("daemon-a", freeze=True), ReplyLost(Cut.AFTER)],
    [
        TAKEN_OVER,
        MissedHandOver(TAKEN_OVER),
        *kills(At.IN_EVICT, At.AFTER_PLAN, At.IN_CLAIM, At.AFTER_CLAIM),
        *kills(At.IN_REGISTER, At.IN_BEGIN_TRANSFER),
    ],
    [DatabaseStops(crash=False), Processes("daemon-b"), ConnectionsCut()],
    [DatabaseReadOnly()],
    [DatabaseFreezes()],
]


def test_every_incident_leaves_each_record_once(tmp_path: Path) -> None:
    """Method: a steady writer; rounds of incidents; after each round the ledger and the output."""
    tally = Tally()
    with chaos_world(tmp_path / "home") as world:
        try:
            play(world, tally, [])
            for incidents in ROUNDS:
                play(world, tally, incidents)
            finish(world, tally)
        except BaseException:
            print_logs(world)
            raise
        finally:
            print(tally.table(world.proof.records))  # noqa: T201
    assert tally.violations == []
    assert tally.missed == []
