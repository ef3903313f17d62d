"""Retries of requests to a service, and the errors for its refusals.

The pauses are exponential back-off with full jitter (AWS Architecture Blog, "Exponential Backoff
and Jitter", 2015), and never shorter than the service requires.
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
"""Five attempts take much less than the minute of a sensor's tick."""

Answer = TypeVar("Answer")


def ask(
    call: Callable[[], Answer],
    *,
    attempts: int = ATTEMPTS,
    first_pause_s: float = FIRST_PAUSE_S,
    pause_max_s: float = PAUSE_MAX_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Return the answer of `call`; repeat it while the service is unavailable or throttles.

    Args:
        call: one request that is safe to repeat.
        attempts: the most requests.
        first_pause_s: the longest first pause; the limit doubles with each pause.
        pause_max_s: the longest pause, unless the service requires a longer one.

    Raises:
        SourceThrottled, SourceUnavailable: the error of the last attempt.

    Examples:
        >>> ask(lambda: "an answer")
        'an answer'
    """
    jitter = tenacity.wait_random_exponential(multiplier=first_pause_s, max=pause_max_s)

    def pause_s(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        service_s = error.retry_after_s if isinstance(error, SourceThrottled) else 0.0
        return max(service_s, jitter(state))

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(SourceUnavailable),
        stop=tenacity.stop_after_attempt(attempts),
        wait=pause_s,
        sleep=sleep,
        reraise=True,
    )(call)


class Refusal(NamedTuple):
    """One row of a service's table of refusals.

    Attributes:
        codes: the service's error codes, as a regular expression.
        error: the type of our error.
        sentence: its message, a format of `code`, `status` and the subject of the request.
        statuses: the HTTP statuses with the same meaning.
    """

    codes: str
    error: type[LeaseholdError]
    sentence: str
    statuses: Container[int] = ()


def error_for(
    table: Iterable[Refusal], code: str, status: int = 0, **subject: str
) -> LeaseholdError | None:
    """Return the error of the first row with this code or status; None if no row has it."""
    for row in table:
        if re.fullmatch(row.codes, code) or status in row.statuses:
            return row.error(row.sentence.format(code=code, status=status, **subject))
    return None
