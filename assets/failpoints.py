"""Named places where a test can make this process die as if its machine had lost power.

Nothing happens unless the environment variable `LEASEHOLD_FAILPOINT` names the place.
"""

from __future__ import annotations

import os
import signal
from typing import Literal

ENVIRONMENT_VARIABLE = "LEASEHOLD_FAILPOINT"

Failpoint = Literal[
    "after_open",
    "after_intent",
    "during_write",
    "after_write",
    "before_commit",
    "after_commit",
    "before_close",
    "after_rewrite_claim",
    "before_swap",
    "after_swap",
]


def armed(name: Failpoint) -> bool:
    """Whether this process is to die at the named place."""
    return os.environ.get(ENVIRONMENT_VARIABLE) == name


def reach(name: Failpoint) -> None:
    """Kill this process with SIGKILL if the named place is armed."""
    if armed(name):
        os.kill(os.getpid(), signal.SIGKILL)
