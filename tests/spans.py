"""Spans of a test, in memory, recorded by the SDK that a user would set up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dagster_leasehold.lease_store import tracing


@dataclass
class Spans:
    """The spans that have ended, without their common prefix."""

    exporter: InMemorySpanExporter

    def named(self, name: str) -> list[ReadableSpan]:
        ended = self.exporter.get_finished_spans()
        return [each for each in ended if each.name == tracing.PREFIX + name]

    def attributes(self, name: str) -> list[dict[str, object]]:
        return [
            {
                key.removeprefix(tracing.PREFIX): value
                for key, value in (each.attributes or {}).items()
            }
            for each in self.named(name)
        ]

    def tree(self) -> list[str]:
        """Each span below the one around it, in order of their beginnings."""
        ended = self.exporter.get_finished_spans()
        ids = {each.context.span_id for each in ended if each.context}

        def below(parent: int | None, depth: int) -> Iterator[str]:
            for each in sorted(ended, key=lambda each: each.start_time or 0):
                above = each.parent.span_id if each.parent and each.parent.span_id in ids else None
                if above == parent and each.context:
                    yield "  " * depth + each.name.removeprefix(tracing.PREFIX)
                    yield from below(each.context.span_id, depth + 1)

        return list(below(None, 0))


@contextmanager
def recorded_spans() -> Iterator[Spans]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with patch.object(tracing, "_TRACER", provider.get_tracer("test")):
        yield Spans(exporter)
