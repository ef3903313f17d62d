"""Separate wall clocks for processes, by a library that is loaded before all others.

It shifts the time of day that Python's code sees, in every process of a host; monotonic clocks are
unchanged. Debian's `libfaketime` shifts the time for all libraries, and gives each wait with a
timeout a wrong time: a waiting thread of Python then never sleeps, a process of several threads is
delayed for minutes, and `time.sleep` fails or returns at once.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from tests.database_server import cache_folder

SOURCE = Path(__file__).with_name("wall_clock.c")
COMPILE_TIMEOUT_S = 120


@cache
def wall_clock_library() -> Path:
    """Return the library, compiled once; skip the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the library of wall clocks needs a compiler: `cc` is not on the path")
    folder = cache_folder("wall-clock")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    with FileLock(folder / "lock"):
        if not library.exists():
            draft = library.with_suffix(".draft")
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O2", "-o", draft, SOURCE, "-ldl"],
                check=True,
                timeout=COMPILE_TIMEOUT_S,
            )
            draft.replace(library)
    return library


@dataclass(frozen=True)
class WallClock:
    """The wall clock of one host.

    Attributes:
        library: the library that shows it.
        offset: the file with its difference from this machine's clock.
    """

    library: Path
    offset: Path

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the host's processes; their children inherit them."""
        return {"LD_PRELOAD": str(self.library), "TEST_WALL_CLOCK": str(self.offset)}

    def step(self, *, minutes: int) -> None:
        """Set the clock ahead of or behind this machine's by these seconds."""
        # Processes have the file mapped: it is written in place.
        with self.offset.open("r+b" if self.offset.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("q", minutes * 60))
