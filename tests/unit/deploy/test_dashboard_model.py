"""The dashboard, read and written by Grafana's own model of one: nothing in it is unknown there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.own_environments import PackagesMissing, own_packages

FILE = Path(__file__).parents[3] / "deploy/monitoring/dashboard.json"
MODEL = ("grafana-foundation-sdk==1769699379!11.6.0",)
ROUND_TRIP = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
print(JSONEncoder().encode(Dashboard.from_json(json.load(sys.stdin))))
"""


def written_by_grafana(dashboard: Any) -> Any:
    try:
        folder = own_packages("grafana-model", MODEL)
    except PackagesMissing as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP],
        input=json.dumps(dashboard),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lost(given: Any, written: Any, place: str = "") -> Iterator[str]:
    """Yield the places of values that the model did not give back."""
    if isinstance(given, dict) and isinstance(written, dict):
        for key, value in given.items():
            if key in written:
                yield from lost(value, written[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        for number, (one, other) in enumerate(zip(given, written, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif given != written:
        yield place


@pytest.mark.long
def test_grafana_knows_every_field_of_the_dashboard() -> None:
    dashboard = json.loads(FILE.read_text("utf-8"))
    assert dashboard["panels"]
    assert [*lost(dashboard, written_by_grafana(dashboard))] == []


@pytest.mark.long
def test_the_check_finds_a_field_that_grafana_does_not_know() -> None:
    dashboard = json.loads(FILE.read_text("utf-8"))
    panel = dashboard["panels"][0]
    panel["gridpos"] = panel.pop("gridPos")
    panel["targets"][0]["query"] = panel["targets"][0].pop("expr")
    places = {*lost(dashboard, written_by_grafana(dashboard))}
    assert places == {".panels[0].gridpos", ".panels[0].targets[0].query"}
