"""Reads the systemd units of `deploy/systemd`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.unit.deploy.command_lines import Program

FOLDER = Path(__file__).parents[3] / "deploy/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
HOST = "host.example"
SECONDS = {"": 1, "s": 1, "min": 60}


def settings(unit: Path) -> Iterator[tuple[str, str]]:
    """Yield keys and values; a key may come more than once."""
    for line in unit.read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            yield key, value


def seconds(span: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(\D*)", span).groups()  # type: ignore[union-attr]
    return float(number) * SECONDS[unit]


def programs() -> Iterator[Program]:
    """Yield what the units start, with systemd's own placeholders filled in."""
    for unit in UNITS:
        values = dict(settings(unit))
        stop = values.get("TimeoutStopSec")
        for key, value in settings(unit):
            if key == "ExecStart":
                line = value.replace("%i", "east").replace("%H", HOST)
                yield Program(
                    f"systemd/{unit.name}",
                    tuple(shlex.split(line)),
                    seconds(stop) if stop else None,
                )
