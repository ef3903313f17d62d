"""A span is an error with one sentence, bears names and numbers, and is nothing without an SDK."""

from __future__ import annotations

import pytest
from opentelemetry.trace import INVALID_SPAN, StatusCode, get_current_span

from dagster_leasehold.lease_store.errors import StoreUnavailable
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.tracing import fail, note, span
from tests.spans import recorded_spans

KEY = GroupKey.parse("default", "demo")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (StoreUnavailable("The lease store does not answer."), "The lease store does not answer."),
        (OSError("mysql://root:canary@db is away\nsecond line"), "OSError: "),
        (KeyboardInterrupt("canary"), "KeyboardInterrupt"),
    ],
)
def test_errors_on_spans_are_one_sentence_without_secrets(
    error: BaseException, sentence: str
) -> None:
    with recorded_spans() as spans:
        with pytest.raises(type(error)), span("commit"):
            raise error
        (commit,) = spans.named("commit")
        assert commit.status.status_code is StatusCode.ERROR
        text = commit.status.description or ""
        assert text.startswith(sentence)
        assert "canary" not in text
        assert "\n" not in text
        assert not commit.events


def test_a_decorated_function_has_a_span_for_each_call() -> None:
    @span("tick", KEY, sensor="publish")
    def tick(number: int) -> int:
        note(runs=number)
        if number:
            fail("It went wrong.")
        return number

    with recorded_spans() as spans:
        assert [tick(0), tick(1)] == [0, 1]
        common = {"stream": "demo", "group": "default", "sensor": "publish"}
        assert spans.attributes("tick") == [common | {"runs": 0}, common | {"runs": 1}]
        assert [each.status.description for each in spans.named("tick")] == [None, "It went wrong."]


def test_without_an_sdk_nothing_is_recorded() -> None:
    with span("run", KEY, shards=3):
        note(records=1)
        fail("It went wrong.")
        assert not get_current_span().is_recording()
    assert get_current_span() is INVALID_SPAN
