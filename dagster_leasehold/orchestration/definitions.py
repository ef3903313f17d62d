"""The definitions of all declared streams, which `dagster` and `dg` load."""

from __future__ import annotations

import dagster as dg

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import load_settings

defs = dg.Definitions.merge(
    build_definitions(DeclaredStreams(load_settings()).all()),
    # A run has one or two steps, and a process for each would take a second to start.
    dg.Definitions(executor=dg.in_process_executor),
)
