"""Named places in the code where a test can kill or freeze this process.

If the environment variable `LEASEHOLD_FAILPOINT` names a place, every process that reaches the
place dies. If it names a folder after an `@`, each file in the folder arms the place with its name,
once. The first process that reaches it renames the file to `<place>.<pid>`, and sends itself the
signal that the file names (`KILL` if the file is empty).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

ENVIRONMENT_VARIABLE = "LEASEHOLD_FAILPOINT"
FOLDER_MARK = "@"


def armed(place: str) -> bool:
    """Return True if a process that reaches this place is interrupted."""
    setting = os.environ.get(ENVIRONMENT_VARIABLE)
    if setting and setting.startswith(FOLDER_MARK):
        return Path(setting[len(FOLDER_MARK) :], place).exists()
    return setting == place


def reach(place: str) -> None:
    """Interrupt this process if the place is armed."""
    setting = os.environ.get(ENVIRONMENT_VARIABLE)
    if not setting:
        return
    if setting.startswith(FOLDER_MARK):
        _reach_once(Path(setting[len(FOLDER_MARK) :]), place)
    elif setting == place:
        os.kill(os.getpid(), signal.SIGKILL)


def _reach_once(folder: Path, place: str) -> None:
    own_file = folder / f"{place}.{os.getpid()}"
    try:
        # If several processes get here at once, only one can rename the file.
        (folder / place).rename(own_file)
        name = own_file.read_text(encoding="utf-8").strip() or "KILL"
    except OSError:
        return
    os.kill(os.getpid(), signal.Signals[f"SIG{name}"])
