"""The definitions that `dagster` and `dg` load: the streams of the settings."""

from __future__ import annotations

import dagster as dg

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import load_settings

defs = dg.Definitions.merge(
    build_definitions(DeclaredStreams(load_settings()).all()),
    # A run has a step or two: a process for each would only cost a second of start-up.
    dg.Definitions(executor=dg.in_process_executor),
)
