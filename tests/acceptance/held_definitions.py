"""Definitions that Dagster's processes load in the tests of the held stream."""

from __future__ import annotations

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from tests.acceptance.held_stream import stream_of

_settings = load_settings()
defs = build_definitions([stream_of(_settings)])
