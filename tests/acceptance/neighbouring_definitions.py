"""The definitions of a second code location of one deployment, with another stream."""

from __future__ import annotations

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.settings import load_settings
from tests.acceptance.merged_definitions import stream_of

_settings = load_settings()
defs = build_definitions([stream_of(_settings, "returns")])
