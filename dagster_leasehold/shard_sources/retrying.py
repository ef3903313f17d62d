"""Refusals of services: the errors that they become, and the pauses before asking again.

A pause grows with each attempt, and has jitter, so that clients do not agree.

Based on exponential back-off with full jitter (AWS Architecture Blog, "Exponential Backoff and
Jitter", 2015); a service that says how long to wait is waited for at least as long.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple, TypeVar

import tenacity

from dagster_leasehold.lease_store.errors import LeaseholdError, SourceThrottled, SourceUnavailable

ATTEMPTS = 5
FIRST_PAUSE_S = 0.2
PAUSE_MAX_S = 3.0
"""Five attempts stay far below the minute that a sensor's tick can take."""

Answer = TypeVar("Answer")


def ask(
    call: Callable[[], Answer],
    *,
    attempts: int = ATTEMPTS,
    first_pause_s: float = FIRST_PAUSE_S,
    pause_max_s: float = PAUSE_MAX_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Return the answer of `call`, asking again while the service is away or asks for patience.

    Args:
        call: one request, which can be repeated.
        attempts: the most requests.
        first_pause_s: the longest first pause; each next one can be twice as long.
        pause_max_s: the longest pause, unless the service asks for more.
        sleep: waits.

    Raises:
        SourceThrottled, SourceUnavailable: the last attempt's, as it was.

    Examples:
        >>> ask(lambda: "an answer")
        'an answer'
    """
    jitter = tenacity.wait_random_exponential(multiplier=first_pause_s, max=pause_max_s)

    def pause_s(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.retry_after_s if isinstance(error, SourceThrottled) else 0.0
        return max(asked_s, jitter(state))

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(SourceUnavailable),
        stop=tenacity.stop_after_attempt(attempts),
        wait=pause_s,
        sleep=sleep,
        reraise=True,
    )(call)


class Refusal(NamedTuple):
    """A kind of refusal: a row of a service's table.

    Attributes:
        codes: the service's codes for it, as a regular expression.
        error: the type of the error.
        sentence: its sentence; braces hold `code`, `status`, and what else the request was about.
        statuses: statuses of HTTP that mean the same.
    """

    codes: str
    error: type[LeaseholdError]
    sentence: str
    statuses: Container[int] = ()


def error_for(
    table: Iterable[Refusal], code: str, status: int = 0, **about: str
) -> LeaseholdError | None:
    """Return the error of the first row that a code or status belongs to; None if none fits."""
    for row in table:
        if re.fullmatch(row.codes, code) or status in row.statuses:
            return row.error(row.sentence.format(code=code, status=status, **about))
    return None
