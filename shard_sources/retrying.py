"""Asking a service again: after a pause that grows, with jitter, so that clients do not agree.

Based on exponential back-off with full jitter (AWS Architecture Blog, "Exponential Backoff and
Jitter", 2015); a service that says how long to wait is waited for at least as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from dagster_leasehold.lease_store.errors import SourceThrottled, SourceUnavailable

ATTEMPTS = 5
FIRST_PAUSE_S = 0.2
PAUSE_MAX_S = 3.0
"""Five attempts stay far below the minute that a sensor's tick may take."""

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
        call: one request, which may be repeated.
        attempts: the most requests.
        first_pause_s: the longest first pause; each next one may be twice as long.
        pause_max_s: the longest pause, unless the service asks for more.
        sleep: waits.

    Raises:
        SourceThrottled, SourceUnavailable: the last attempt's, as it was.
    """
    jitter = wait_random_exponential(multiplier=first_pause_s, max=pause_max_s)

    def pause_s(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.retry_after_s if isinstance(error, SourceThrottled) else 0.0
        return max(asked_s, jitter(state))

    return Retrying(
        retry=retry_if_exception_type(SourceUnavailable),
        stop=stop_after_attempt(attempts),
        wait=pause_s,
        sleep=sleep,
        reraise=True,
    )(call)
