"""The definitions that `dagster` and `dg` load: the streams of the settings."""

from __future__ import annotations

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.resources import declared_streams
from dagster_leasehold.orchestration.settings import load_settings

_settings = load_settings()
defs = build_definitions(declared_streams(_settings), _settings)
