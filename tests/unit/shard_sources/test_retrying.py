"""Retries."""

from __future__ import annotations

import pytest

from dagster_leasehold.lease_store.errors import CursorExpired, SourceThrottled, SourceUnavailable
from dagster_leasehold.shard_sources.retrying import ATTEMPTS, PAUSE_MAX_S, ask


class Service:
    """Fails with these errors, one a request, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.requests = 0
        self.slept: list[float] = []

    def __call__(self) -> str:
        self.requests += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_a_request_is_repeated_with_pauses_until_it_succeeds() -> None:
    service = Service(SourceThrottled("slow down"), SourceUnavailable("away"))
    assert ask(service, sleep=service.slept.append) == "answer"
    assert service.requests == 3
    assert len(service.slept) == 2
    assert all(0 <= pause <= PAUSE_MAX_S for pause in service.slept)


def test_a_retry_waits_at_least_as_long_as_the_service_demands() -> None:
    service = Service(SourceThrottled("slow down", retry_after_s=7.5))
    ask(service, sleep=service.slept.append)
    assert service.slept == [7.5]


def test_a_retry_gives_up_with_the_last_error() -> None:
    errors = [SourceThrottled(f"no. {number}") for number in range(ATTEMPTS + 3)]
    service = Service(*errors)
    with pytest.raises(SourceThrottled, match=f"no. {ATTEMPTS - 1}"):
        ask(service, sleep=service.slept.append)
    assert service.requests == ATTEMPTS


def test_an_error_that_no_retry_can_cure_is_not_retried() -> None:
    service = Service(CursorExpired("gone"))
    with pytest.raises(CursorExpired):
        ask(service, sleep=service.slept.append)
    assert service.requests == 1


def test_pauses_differ_between_clients() -> None:
    """Goal: clients that were throttled together do not retry together."""
    pauses: list[list[float]] = []
    for _ in range(5):
        service = Service(*[SourceThrottled("slow down")] * 3)
        ask(service, sleep=service.slept.append)
        pauses.append(service.slept)
    assert len({tuple(slept) for slept in pauses}) == 5
