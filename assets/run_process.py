"""Whether a run has ended, and whether its process is still there.

Dagster's launcher cannot tell: a run whose process died together with the code server that
watched it stays "started" for ever, and would keep its shards open. A run therefore notes its
process in a tag, and whoever looks from the same host can see that it is gone. A start time goes
with the process id, because ids are used again.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection

import dagster as dg
import psutil

_START_TOLERANCE_S = 2.0


def process_note() -> str:
    """`<host>|<pid>|<start time>` of this process."""
    started = psutil.Process().create_time()
    return f"{platform.node()}|{os.getpid()}|{started:.2f}"


def process_gone(note: str) -> bool:
    """Whether the noted process certainly runs no more; False where this host cannot tell."""
    host, _, rest = note.partition("|")
    pid_text, _, start_text = rest.partition("|")
    try:
        pid, start = int(pid_text), float(start_text)
    except ValueError:
        return False
    if host != platform.node():
        return False
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return abs(process.create_time() - start) > _START_TOLERANCE_S
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def ended_runs(instance: dg.DagsterInstance, run_ids: Collection[str]) -> set[str]:
    """Those of `run_ids` that have ended, or of which the instance knows nothing."""
    if not run_ids:
        return set()
    runs = instance.get_runs(filters=dg.RunsFilter(run_ids=list(run_ids)))
    return set(run_ids) - {run.run_id for run in runs if not run.is_finished}
