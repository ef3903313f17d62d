"""Definitions that Dagster's processes load on every host of the network."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from tests.chaos.stream import stream_of

_settings = load_settings()
# Long runs: an incident is to hit one that works, and not the start of the next.
_stream = stream_of(_settings.home)
_long = replace(_stream, pace=replace(_stream.pace, run_budget_s=40.0))
defs = build_definitions([_long])
