"""What `dagster` and `dg` load: the streams that the settings name."""

from __future__ import annotations

from orchestration.build import build_definitions
from orchestration.settings import load_settings
from orchestration.streams import declared_streams

_settings = load_settings()
defs = build_definitions(declared_streams(_settings), _settings)
