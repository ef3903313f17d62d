"""The pages of Dagster's daemon, with beats, storage and clock of the test's."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.publication_rows import LATE_S, ShardLag
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.supervision.daemon_health import (
    CHECK_S,
    ITERATION_MAX_S,
    SERVER_LOOP,
    SILENT_MAX_S,
    DaemonHealth,
)
from tests.sources.world import START

KEY, SHARD = GroupKey.parse("default", "orders"), ShardId("0")
RULES = Path(__file__).parents[4] / "deploy/monitoring/leasehold.rules.yml"


class Scene:
    """A daemon that beats at each check, until a test stops it."""

    def __init__(self) -> None:
        self.seconds, self.beats, self.beating = 0.0, 0, True
        self.storage_error: Exception | None = None
        self.store_error: Exception | None = None
        self.waiting: list[ShardLag] = []
        self.health = DaemonHealth(self.beat, self.lags, clock=lambda: self.seconds)

    def beat(self) -> str:
        if self.storage_error:
            raise self.storage_error
        self.beats += self.beating
        return str(self.beats)

    def lags(self) -> dict[GroupKey, list[ShardLag]]:
        if self.store_error:
            raise self.store_error
        return {KEY: self.waiting}

    def look_for(self, seconds: float) -> None:
        until = self.seconds + seconds
        while self.seconds < until:
            self.seconds += CHECK_S
            self.health.check()

    @property
    def pages(self) -> tuple[str, str]:
        return self.health.unhealthy(), self.health.not_ready()


def test_a_daemon_is_ready_after_its_own_first_heartbeat() -> None:
    scene = Scene()
    scene.beating = False
    assert scene.pages == ("", "Dagster's daemon has run no sensors yet.")
    scene.look_for(60.0)
    assert scene.pages == ("", "Dagster's daemon has run no sensors yet.")
    scene.beating = True
    scene.look_for(CHECK_S)
    assert scene.pages == ("", "")


def test_a_daemon_without_heartbeats_needs_a_restart() -> None:
    scene = Scene()
    scene.look_for(30.0)
    scene.beating = False
    scene.look_for(SILENT_MAX_S)
    assert scene.pages == ("", "")
    scene.look_for(CHECK_S)
    assert scene.pages == ("Dagster's daemon has run no sensors for 310 s.",) * 2


def test_a_daemon_that_never_beat_needs_a_restart() -> None:
    scene = Scene()
    scene.beating = False
    scene.look_for(SILENT_MAX_S + 2 * CHECK_S)
    assert scene.health.unhealthy()


def test_an_unavailable_storage_needs_no_restart_of_the_daemon() -> None:
    scene = Scene()
    scene.look_for(30.0)
    scene.storage_error = OSError("gone")
    scene.look_for(2 * SILENT_MAX_S)
    assert scene.pages == ("", "Dagster's storage did not answer: OSError.")
    scene.storage_error = None
    scene.look_for(CHECK_S)
    assert scene.pages == ("", "")


def test_a_hanging_loop_needs_a_restart_of_the_daemon() -> None:
    scene = Scene()
    scene.health.record_iteration(SERVER_LOOP)
    scene.look_for(ITERATION_MAX_S)
    assert scene.health.unhealthy() == ""
    scene.look_for(CHECK_S)
    silent = "Dagster's daemon has not checked its code server for 130 s."
    assert scene.pages == (silent, silent)


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_an_overdue_publication_is_not_ready_and_needs_no_restart(hours: int) -> None:
    """Method: the batch is dated by another host, whose clock is an hour apart, or is not."""
    scene = Scene()
    scene.look_for(30.0)
    date = utc_now() + timedelta(hours=hours)
    scene.waiting = [ShardLag(SHARD, 1, 2, 40, date)]
    scene.look_for(LATE_S + CHECK_S)
    assert scene.pages == ("", "")
    scene.look_for(CHECK_S)
    assert scene.pages == (
        "",
        "The table of orders/default is behind: 2 committed batches with 40 records wait since "
        f"{date:%Y-%m-%d %H:%M:%S} UTC.",
    )
    scene.waiting = []
    scene.look_for(CHECK_S)
    assert scene.pages == ("", "")


def test_a_table_that_is_published_regularly_is_not_overdue() -> None:
    scene = Scene()
    scene.look_for(30.0)
    for number in range(1, 100):
        scene.waiting = [ShardLag(SHARD, number, 30, 40, START)]
        scene.look_for(CHECK_S)
        assert scene.pages == ("", "")


def test_a_table_that_is_published_too_slowly_is_overdue() -> None:
    """Method: at each check a batch arrives, and one is published that arrived 32 checks before."""
    scene = Scene()
    scene.look_for(30.0)
    sentences = set[str]()
    for number in range(1, 100):
        scene.waiting = [ShardLag(SHARD, number, 32, 40, START)]
        scene.look_for(CHECK_S)
        sentences.add(scene.pages[1])
    assert any("is behind" in each for each in sentences)


def test_an_unavailable_lease_store_is_reported_with_its_error() -> None:
    scene = Scene()
    scene.store_error = StoreUnavailable("The lease store does not answer.")
    scene.look_for(30.0)
    assert scene.pages == ("", "The lease store does not answer.")
    scene.store_error = OSError("Dagster's storage is gone")
    scene.look_for(CHECK_S)
    assert scene.pages == ("", "Dagster's storage did not answer: OSError.")


def test_alert_and_health_page_agree_on_an_overdue_publication() -> None:
    [limit] = re.findall(r"leasehold_publication_lag_seconds > (\d+)", RULES.read_text("utf-8"))
    assert float(limit) == LATE_S
