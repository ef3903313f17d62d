"""Definitions that Dagster's processes load on every host of the network."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.assets.pace import Pace
from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from tests.chaos.stream import stream_of

_settings = load_settings()
# Long runs: an incident is to hit one that works, and not the start of the next.
defs = build_definitions(
    [replace(stream_of(_settings.home), pace=Pace(run_budget_s=40.0))], _settings
)
