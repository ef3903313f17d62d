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


def commands(unit: Path, instance: str, host: str = HOST) -> Iterator[tuple[str, ...]]:
    """Yield the commands of a unit, one after the other, with systemd's placeholders filled in."""
    for key, value in settings(unit):
        if key == "ExecStart":
            yield tuple(shlex.split(value.replace("%i", instance).replace("%H", host)))


def stop_s(unit: Path) -> float | None:
    """Return the seconds between SIGTERM and SIGKILL; None where the unit does not say."""
    stop = dict(settings(unit)).get("TimeoutStopSec")
    return seconds(stop) if stop else None


def environment() -> dict[str, str]:
    """Return the variables that all units have in common."""
    lines = (FOLDER / "leasehold.env").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and line[0] != "#")


def programs() -> Iterator[Program]:
    """Yield the programs of the units."""
    for unit in UNITS:
        for arguments in commands(unit, "east"):
            yield Program(f"systemd/{unit.name}", arguments, stop_s(unit))
