"""Definitions that Dagster loads in `benchmarks.run_start`: the streams, with their parts timed.

The parts are functions of the package, wrapped as they are; each call appends a line to the file
that the variable `BENCHMARK_PARTS` names. The clock is the machine's, as for Dagster's events.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from dagster_leasehold import lease_store
from dagster_leasehold.assets.consuming import spark_sweeper
from dagster_leasehold.assets.spark.spark_resource import SparkResource
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import load_settings

T = TypeVar("T")
STORE_PARTS = (
    "open_tenure",
    "open_tenures",
    "record_intents",
    "commit",
    "close_tenure",
    "close_tenures",
)


def timed(part: str, work: Callable[..., T]) -> Callable[..., T]:
    """Return a function that does the same, and writes a line for each call."""

    def call(*arguments: Any, **named: Any) -> T:
        began = time.time()
        try:
            return work(*arguments, **named)
        finally:
            line = json.dumps({"part": part, "began": began, "ended": time.time()})
            with open(os.environ["BENCHMARK_PARTS"], "a", encoding="utf-8") as file:
                file.write(line + "\n")

    return call


def _timed_store(url: Any, **named: Any) -> Any:
    store = _open_store(url, **named)
    for part in STORE_PARTS:
        if hasattr(store, part):
            setattr(store, part, timed(part, getattr(store, part)))
    return store


_open_store = lease_store.open_store
lease_store.open_store = _timed_store
_session = SparkResource.spark_session.fget
assert _session is not None
SparkResource.spark_session = property(timed("session", _session))
spark_sweeper.run_sweep = timed("job", spark_sweeper.run_sweep)

defs = build_definitions(DeclaredStreams(load_settings()).all())
