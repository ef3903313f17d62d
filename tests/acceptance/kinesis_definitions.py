"""The definitions of the settings, made slow, for the test of a Kinesis stream."""

from __future__ import annotations

from dataclasses import replace

from dagster_leasehold.orchestration.build import build_definitions
from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
from dagster_leasehold.orchestration.settings import load_settings
from tests.acceptance.held_stream import HoldingTransform

_settings = load_settings()
defs = build_definitions(
    [
        replace(stream, transform=HoldingTransform(_settings.home))
        for stream in DeclaredStreams(_settings).all()
    ]
)
