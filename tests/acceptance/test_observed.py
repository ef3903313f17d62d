"""Metrics, dashboard and traces of a deployment on real processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.tracing import PREFIX
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from tests.acceptance.test_metrics import exporter
from tests.dagster_deployment import dagster_deployment
from tests.dashboard_drawing import draw, without_data
from tests.declared import declare, stream_text
from tests.integration.orchestration.test_monitoring import prometheus
from tests.unit.deploy.test_monitoring import DASHBOARD
from tests.unit.orchestration.consumed_home import KEY
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
    pytest.mark.timeout(600),
]
SHARDS, RECORDS = 4, 50
SEEN_S = 120.0
DECLARED = stream_text("demo", pace="Pace(commit_interval_s=1, idle_limit_s=3)")
SWEEP = {"sweep", "plan", "intents", "spark", "session", "commit"}

Span = dict[str, Any]


def spans_of(home: Path) -> list[Span]:
    """All spans that have ended, in any process."""
    lines = [line for file in home.glob("spans-*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def traces_with(name: str, spans: list[Span]) -> list[set[str]]:
    """The names in each trace that has a span of this name."""
    traces: dict[str, set[str]] = {}
    for each in spans:
        names = traces.setdefault(each["context"]["trace_id"], set())
        names.add(each["name"].removeprefix(PREFIX))
    return [names for names in traces.values() if name in names]


def test_every_panel_has_data_and_each_step_has_a_span(tmp_path: Path) -> None:
    """Method: a daemon, a code server and Spark consume and publish; a real Prometheus scrapes."""
    home = tmp_path / "home"
    log = LocalLog.create(home / "logs" / KEY.stream, SHARDS)
    declare(home, DECLARED)
    settings = Settings(home=home)
    open_store(settings.store_url)
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    with (
        dagster_deployment(settings, module="tests.acceptance.traced_definitions"),
        exporter(home) as metrics,
        prometheus(tmp_path / "prometheus", metrics) as asked,
    ):
        for listing in log.list_shards():
            log.append(listing.shard, [b"%d" % number for number in range(RECORDS)])

        def ended() -> bool:
            spans = spans_of(home)
            return all(traces_with(name, spans) for name in ("run", "publication"))

        wait_for("the end of a run and its publication", ended, SEEN_S)
        wait_for("data", lambda: not without_data(asked.get, dashboard), SEEN_S)
        draw(asked.get, dashboard, tmp_path / "dashboard.png")
    spans = spans_of(home)
    published = {"publication", "stage", "catalog"}
    assert traces_with("run", spans)[0] == {"run", "open", "close", "report"} | SWEEP | published
    assert any({"tick", "rebalance", "launch"} <= names for names in traces_with("tick", spans))
