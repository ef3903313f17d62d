"""The shipped dashboard, drawn without Grafana from the answers of a real Prometheus.

Grafana does not run in the tests, because no package registry has its server. They show that each
query of each panel has data, and write a picture for review.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WINDOW_S = 120.0
VARIABLES = {"$stream": ".*", "$group": ".*", "$__rate_interval": "30s"}

Ask = Callable[..., Any]
"""Asks an endpoint of Prometheus' API, with the arguments of its query."""


def lines_of(ask: Ask, panel: Any, until_s: float) -> Iterator[tuple[str, list[Any]]]:
    """Each line of a panel: its legend, and its points as time and text."""
    for target in panel["targets"]:
        query = target["expr"]
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        span = {"start": str(until_s - WINDOW_S), "end": str(until_s), "step": "1"}
        for series in ask("query_range", query=query, **span)["result"]:
            legend = target["legendFormat"]
            for name, value in series["metric"].items():
                legend = legend.replace("{{" + name + "}}", value)
            yield legend, series["values"]


def without_data(ask: Ask, dashboard: Any) -> list[str]:
    """Return the panels to one of whose queries nothing is answered."""
    return [
        panel["title"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
        if not list(lines_of(ask, panel | {"targets": [target]}, time.time()))
    ]


def draw(ask: Ask, dashboard: Any, path: Path) -> None:
    """Draw all panels in their places, the last minutes of each."""
    from matplotlib.figure import Figure

    until_s = time.time()
    rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in dashboard["panels"])
    figure = Figure(figsize=(16, rows / 2), layout="constrained")
    grid = figure.add_gridspec(rows, 24)
    for panel in dashboard["panels"]:
        x, y, width, height = (panel["gridPos"][name] for name in "xywh")
        axes = figure.add_subplot(grid[y : y + height, x : x + width])
        axes.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})", fontsize=9)
        for legend, points in lines_of(ask, panel, until_s):
            if panel["type"] == "stat":
                axes.axis("off")
                axes.text(0.5, 0.4, f"{float(points[-1][1]):g}", fontsize=24, ha="center")
            else:
                times = [at - until_s for at, _ in points]
                axes.plot(times, [float(value) for _, value in points], label=legend)
        if panel["type"] != "stat":
            axes.legend(fontsize=6)
    figure.savefig(path)
