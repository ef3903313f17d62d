"""One deployment for all pages that are only read, and a browser for each test."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.replayed_stream import KEY, STREAM
from tests.acceptance.test_backfill import checkpoints, values
from tests.dagster_deployment import DagsterDeployment, dagster_deployment
from tests.ui.browsing import chromium_page, no_run_works
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHARDS, WAVES, WAVE = ("0", "1", "2", "3"), 2, 60
CONSUMED_S, SHOWN_MS = 240.0, 60_000
SCREENSHOT_VARIABLE = "LEASEHOLD_SCREENSHOT"
"""If it is set, tests write the pictures of the docs."""


@dataclass(frozen=True)
class Scene:
    """A stream that two nodes have consumed in two waves, and continue to consume."""

    deployment: DagsterDeployment
    store: LeaseStore
    log: LocalLog
    key: GroupKey = KEY

    @property
    def url(self) -> str:
        return self.deployment.url

    def append(self, *, begin: int, count: int) -> None:
        for shard in SHARDS:
            self.log.append(shard, values(shard, begin, begin + count))

    def wait_until_consumed(self, end: int) -> None:
        """Wait until every checkpoint is `end`, and no run is under way."""
        goal = dict.fromkeys(SHARDS, str(end))
        wait_for("the records", lambda: checkpoints(self.store) == goal, CONSUMED_S)
        wait_for("the last run to end", lambda: no_run_works(self.deployment), CONSUMED_S)


@pytest.fixture(scope="package")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Generator[Scene]:
    home = tmp_path_factory.mktemp("scene") / "home"
    settings = Settings(home=home, nodes=("node-a", "node-b"))
    log = LocalLog.create(home / "logs" / STREAM, len(SHARDS))
    store = open_store(settings.store_url)
    with dagster_deployment(settings, module="tests.acceptance.replayed_definitions") as deployment:
        made = Scene(deployment, store, log)
        for wave in range(WAVES):
            made.append(begin=wave * WAVE, count=WAVE)
            made.wait_until_consumed((wave + 1) * WAVE)
        yield made
    store.close()


@pytest.fixture
def page(tmp_path: Path) -> Generator[Page]:
    with chromium_page(tmp_path) as opened:
        opened.set_default_timeout(SHOWN_MS)
        yield opened
