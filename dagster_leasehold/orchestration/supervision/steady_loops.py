"""Dagster's daemon loops, made to wait by a clock that nobody sets.

Dagster 1.13 waits between two looks by the wall clock:

1. The queue has looked for runs, and waits for a second.
2. The clock of its host is set back by an hour.
3. It waits for an hour and a second: runs are asked for, and none begins.

So it is with a code server that was away: its runs wait for a minute, by the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace

LOOPS = ("dagster._daemon.daemon", "dagster._daemon.run_coordinator.queued_run_coordinator_daemon")
"""Dagster's modules that measure nothing but waits with `time.time`."""


def wait_by(clock: Callable[[], float]) -> None:
    """Have the loops of Dagster's daemon in this process wait by a clock, in seconds."""
    for name in LOOPS:
        module = import_module(name)
        # What is not there would be looked up in vain, in silence.
        assert module.time.time
        vars(module)["time"] = SimpleNamespace(time=clock, sleep=time.sleep)
