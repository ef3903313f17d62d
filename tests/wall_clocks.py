"""Wall clocks of their own for processes, by a library of Debian's that is loaded before others.

It is fetched into a cache folder and not installed. What it shifts is the time of day, as programs
and time stamps of files show it; monotonic clocks stay as they are.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from tests.database_server import cache_folder

PACKAGE = "libfaketime"
FETCH_TIMEOUT_S = 120
_SLEEP = """\
# The library hands Python's own sleep, until a time of the monotonic clock, a wrong time.
import select
import time

time.sleep = lambda seconds: select.select([], [], [], seconds) and None
"""


@cache
def wall_clock_library() -> Path:
    """Return the library; skip the test where it cannot be had."""
    folder = cache_folder("faketime")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        if not (there := sorted(folder.rglob("libfaketimeMT.so.1"))):
            _fetch(folder)
            there = sorted(folder.rglob("libfaketimeMT.so.1"))
    return there[0]


def _fetch(folder: Path) -> None:
    try:
        for command in (
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", PACKAGE],
            ["sh", "-c", f"dpkg-deb -x {PACKAGE}_*.deb root"],
        ):
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S
            )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{PACKAGE} can be fetched on Debian only, with apt: {error}")


@dataclass(frozen=True)
class WallClock:
    """The wall clock of one host.

    Attributes:
        library: that shows it.
        folder: of the file that holds its offset, and of what its Python loads first.
    """

    library: Path
    folder: Path

    @property
    def _offset(self) -> Path:
        return self.folder / "offset"

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the host's processes; their children inherit them."""
        return {
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Each look at a clock costs them far more under the library: a Spark takes minutes.
            "FAKETIME_SKIP_CMDS": "java,mariadbd",
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(self.folder), os.environ.get("PYTHONPATH")))
            ),
        }

    def step(self, *, minutes: int) -> None:
        """Set the clock that far ahead of this machine's, or behind it."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "sitecustomize.py").write_text(_SLEEP)
        draft = self.folder / "draft"
        draft.write_text(f"{minutes:+d}m\n")
        draft.replace(self._offset)
