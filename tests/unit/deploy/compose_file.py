"""Reads `deploy/compose.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.unit.deploy.command_lines import Program

FILE = Path(__file__).parents[3] / "deploy/compose.yaml"


def project() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text("utf-8"))


def programs() -> Iterator[Program]:
    """Yield the programs of the services of our image, and their health checks."""
    for name, service in project()["services"].items():
        if "build" not in service:
            continue
        stop = service.get("stop_grace_period")
        stop_s = float(stop.removesuffix("s")) if stop else None
        yield Program(f"compose/{name}", tuple(service["command"]), stop_s)
        kind, *check = service.get("healthcheck", {"test": ["NONE"]})["test"]
        if kind == "CMD" and check[0] != "python":
            yield Program(f"compose/{name}", tuple(check))
