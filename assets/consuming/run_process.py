"""The process of a run: noted in a tag, so that others can see that it is gone.

Dagster's launcher cannot tell: a run whose process died together with the code server that
watched it stays "started" for ever, and would keep its shards open. A run therefore notes its
process in a tag, and whoever looks from the same place (one boot of one host, one namespace of
process numbers) can see that it is gone.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import dagster as dg

from dagster_leasehold.lease_store.process_identity import Existence, ProcessIdentity


def process_note() -> str:
    """Return the identity of this process, for a tag."""
    return str(ProcessIdentity.of(os.getpid()))


def process_gone(note: str) -> bool:
    """Return whether the noted process certainly runs no more; False where nobody here can tell."""
    process = ProcessIdentity.parse(note)
    return process is not None and process.existence() is Existence.GONE


def ended_runs(instance: dg.DagsterInstance, run_ids: Collection[str]) -> set[str]:
    """Those of `run_ids` that have ended, or of which the instance knows nothing."""
    if not run_ids:
        return set()
    runs = instance.get_runs(filters=dg.RunsFilter(run_ids=list(run_ids)))
    return set(run_ids) - {run.run_id for run in runs if not run.is_finished}
