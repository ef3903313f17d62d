"""A code location whose user writes its spans as JSON, to a file for each process."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from dagster_leasehold.orchestration.definitions import defs
from dagster_leasehold.orchestration.settings import load_settings

__all__ = ["defs"]

_file = (load_settings().home / f"spans-{os.getpid()}.jsonl").open("a", encoding="utf-8")
_exporter = ConsoleSpanExporter(out=_file, formatter=lambda span: f"{span.to_json(indent=None)}\n")
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))
trace.set_tracer_provider(_provider)
