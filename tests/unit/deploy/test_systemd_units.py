"""The systemd units: systemd's own check, and required content."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.deploy.systemd_units import UNITS, environment, settings

PROGRAMS = "/opt/leasehold/bin"


def verify(folder: Path, changed: tuple[str, str] = ("", "")) -> str:
    """Return the output of `systemd-analyze verify` for copies whose programs exist."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze (package systemd) is not installed")
    copies: list[Path] = []
    for unit in UNITS:
        text = unit.read_text("utf-8")
        for program in re.findall(rf"{PROGRAMS}/(\S+)", text):
            (folder / program).write_text("#!/bin/sh\n", "utf-8")
            (folder / program).chmod(0o755)
        copies.append(folder / unit.name)
        copies[-1].write_text(text.replace(PROGRAMS, str(folder)).replace(*changed), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *copies],
        capture_output=True,
        text=True,
        check=False,
        env={"SYSTEMD_LOG_LEVEL": "warning", "PATH": "/usr/bin:/bin"},
    )
    ours = [line for line in done.stderr.splitlines() if "leasehold" in line]
    return "\n".join(ours) or ("" if done.returncode == 0 else done.stderr)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    assert verify(tmp_path) == ""


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("Restart=always", "Restart=ever", "ever"),
        ("OOMPolicy=continue", "OOMPolice=continue", "OOMPolice"),
        ("WatchdogSec=180s", "WatchdogSec=often", "often"),
        ("/leasehold node", "/absent node", "absent is not executable"),
    ],
)
def test_systemd_refuses_a_wrong_unit(
    tmp_path: Path, before: str, after: str, sentence: str
) -> None:
    assert sentence in verify(tmp_path, (before, after))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_services_are_always_restarted(unit: Path) -> None:
    values = dict(settings(unit))
    if values["Type"] == "oneshot":
        assert values["Restart"] == "no"
        return
    assert values["Restart"] == "always"
    assert values["StartLimitIntervalSec"] == "0"
    assert values["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_watchdog_watches_services_that_notify_it(unit: Path) -> None:
    """Without --health no process notifies it, and the unit would be killed again and again."""
    values = dict(settings(unit))
    assert ("WatchdogSec" in values) == (" --health " in values["ExecStart"])
    if "WatchdogSec" in values:
        assert values["NotifyAccess"] == "main"
        assert values["WatchdogSignal"] == "SIGKILL", "no core with passwords"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_are_not_root_and_write_only_into_the_home(unit: Path) -> None:
    values = dict(settings(unit))
    assert values["User"] == values["StateDirectory"] == "leasehold"
    assert values["ProtectSystem"] == "strict"
    assert values["NoNewPrivileges"] == "true"
    assert values["CapabilityBoundingSet"] == ""


def test_the_home_of_the_environment_is_the_state_folder_of_the_units() -> None:
    values = environment()
    assert values["LEASEHOLD_HOME"] == "/var/lib/leasehold"
    assert values["DAGSTER_HOME"] == "/var/lib/leasehold/dagster"
    assert values["LEASEHOLD_AGENTS"] == "true"
