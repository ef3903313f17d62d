"""The alerts and the dashboard: the metrics that they ask for, and the scenes of promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.orchestration.metrics import StoreCollector

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/monitoring"
RULES, DASHBOARD = FOLDER / "leasehold.rules.yml", FOLDER / "dashboard.json"
NAME = re.compile(r"leasehold_[a-z_]+")


def exported() -> set[str]:
    families = list(StoreCollector(MemoryStore).collect())
    return {f"{each.name}_total" if each.type == "counter" else each.name for each in families}


def queries() -> list[str]:
    dashboard: Any = json.loads(DASHBOARD.read_text("utf-8"))
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_alerts_and_panels_use_exported_metrics() -> None:
    rules = re.sub(r"^\s*#.*$", "", RULES.read_text("utf-8"), flags=re.M)
    asked = {name for text in (rules, *queries()) for name in NAME.findall(text)}
    assert asked <= exported()
    assert all(NAME.search(query) for query in queries())


def test_every_alert_is_documented() -> None:
    page = (ROOT / "docs/how-to/watch.md").read_text("utf-8")
    alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text("utf-8")))
    assert alerts == set(re.findall(r"^\| `(Leasehold\w+)`", page, re.M))


def test_the_page_of_metrics_lists_every_exported_metric() -> None:
    page = (ROOT / "docs/how-to/watch.md").read_text("utf-8")
    named = set(NAME.findall(page))
    missing = {
        name
        for name in exported() - named
        # Names in one row share their beginning.
        if f"`_{re.sub('leasehold_(committed|unpublished)_', '', name)}`" not in page
    }
    assert missing == set()


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed"
)
def test_each_alert_fires_at_its_limit() -> None:
    tests = Path(__file__).parent / "leasehold_rules_test.yml"
    for command in (("check", "rules", RULES), ("test", "rules", tests)):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
