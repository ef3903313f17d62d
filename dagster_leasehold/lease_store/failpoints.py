"""Places where a test can make this process die, or freeze, as machines do.

Nothing happens unless the environment variable `LEASEHOLD_FAILPOINT` names a place, or a folder
after an `@`. By name, every process that comes to the place dies. In a folder, a file with the
name of a place arms it once: the first process that comes there renames the file to
`<place>.<pid>` and sends itself the signal that the file names (`KILL` when it is empty).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

ENVIRONMENT_VARIABLE = "LEASEHOLD_FAILPOINT"
FOLDER_MARK = "@"


def armed(place: str) -> bool:
    """Return True if a process that comes to this place is to be interrupted."""
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
    taken = folder / f"{place}.{os.getpid()}"
    try:
        # Renaming decides between processes that come here at the same moment.
        (folder / place).rename(taken)
        named = taken.read_text(encoding="utf-8").strip() or "KILL"
    except OSError:
        return
    os.kill(os.getpid(), signal.Signals[f"SIG{named}"])
