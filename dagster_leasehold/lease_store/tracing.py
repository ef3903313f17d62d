"""OpenTelemetry spans, for the durations of the steps of ticks, runs and publications.

Only the API package is used; the user chooses an SDK and an exporter. Without an SDK a span costs
a few microseconds. There is one span for each step that waits, and none for each shard or record.
Attributes are names and numbers, never records, cursors, addresses or secrets.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.trace import Span, StatusCode, get_current_span, get_tracer

from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of

PREFIX = "leasehold."
# It looks up the provider at the first span, so the user can configure one after this import.
_TRACER = get_tracer("dagster_leasehold")


@contextmanager
def span(name: str, key: GroupKey | None = None, **attributes: str | int) -> Generator[None]:
    """Trace a `with` block, or each call of a decorated function, as a span.

    An exception sets the span's status to ERROR, with one sentence and no stack trace.

    Args:
        name: the name of the step, the same for all groups.
        key: the group, for a span without a parent.
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
    """Add attributes to the current span."""
    current: Span = get_current_span()
    if current.is_recording():
        current.set_attributes(_prefixed(attributes))


def fail(sentence: str) -> None:
    """Set the status of the current span to ERROR."""
    get_current_span().set_status(StatusCode.ERROR, sentence)


def _prefixed(attributes: dict[str, str | int]) -> dict[str, str | int]:
    return {PREFIX + name: value for name, value in attributes.items()}
