"""Spans of OpenTelemetry, which show where the time of a tick, a run or a publication goes.

The API package alone makes them: an SDK with its exporter is the user's choice, and without one in
the process a span is nothing and costs some microseconds. There is one for each step that waits for
something, never one for each shard or record. An attribute is a name or a number: no record, no
cursor, no address, and no secret is one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.trace import Span, StatusCode, get_current_span, get_tracer

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of

PREFIX = "leasehold."
# Looks for the user's provider when the first span is made, which can be set up after this module.
_TRACER = get_tracer("dagster_leasehold")


@contextmanager
def span(name: str, key: GroupKey | None = None, **attributes: str | int) -> Generator[None]:
    """Make a span around some work, or around each call of a function that this decorates.

    What the work raises makes it an error, described by one sentence without a stack trace.

    Args:
        name: of the step, the same for all groups.
        key: the group of a span that has none above it.
        attributes: names and numbers.
    """
    group = {"stream": str(key.stream), "group": str(key.group)} if key else {}
    with _TRACER.start_as_current_span(
        PREFIX + name,
        attributes=_prefixed(group | attributes),
        record_exception=False,
        set_status_on_exception=False,
    ):
        try:
            yield
        except BaseException as error:
            fail(sentence_of(error) if isinstance(error, Exception) else type(error).__name__)
            raise


def note(**attributes: str | int) -> None:
    """Add attributes that are known only now to the span around the caller."""
    current: Span = get_current_span()
    if current.is_recording():
        current.set_attributes(_prefixed(attributes))


def fail(sentence: str) -> None:
    """Make the span around the caller an error although nothing is raised."""
    get_current_span().set_status(StatusCode.ERROR, sentence)


def _prefixed(attributes: dict[str, str | int]) -> dict[str, str | int]:
    return {PREFIX + name: value for name, value in attributes.items()}
