"""Definitions that Dagster's processes load while they are being killed."""

from __future__ import annotations

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from tests.chaos.stream import stream_of

_settings = load_settings()
defs = build_definitions([stream_of(_settings.home, _settings.nodes)])
