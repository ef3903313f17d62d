"""Sends the user's code to Spark's workers, and shows its exceptions in one line.

The jobs on Spark call it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from dagster_leasehold.assets.spark import shipped_code
from dagster_leasehold.assets.spark.missing_features import TRACE_BEGIN

MESSAGE_LENGTH_MAX = 300
_JAVA_CALL = "An error occurred while calling "
_RAISED = re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: (.*))?$")
_GONE = (
    "Connection refused", "StatusCode.UNAVAILABLE", "StatusCode.UNAUTHENTICATED", "Socket closed",
    "failed to connect to all addresses", "SparkContext was shut down", "stopped SparkContext",
    "SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED", "Answer from Java side is empty",
    "OPERATION_NOT_FOUND", "OPERATION_ABANDONED", "NO_ACTIVE_SESSION", "RESPONSE_ALREADY_RECEIVED",
    "incorrect server side session identifier",
)  # fmt: skip


def session_is_gone(error: BaseException) -> bool:
    """Return True if an error means that Spark itself is gone."""
    if type(error).__name__ in ("Py4JNetworkError", "ConnectionRefusedError"):
        return True
    text = str(error)
    # A stack trace of the user's code may mention other connections.
    return TRACE_BEGIN not in text and any(mark in text for mark in _GONE)


def users_error(error: BaseException) -> str:
    """Return the type and message of an error as one short line.

    Spark's exception contains the stack trace of an exception in a Python worker. The last line of
    the trace is the user's exception.
    """
    text = str(error)
    if TRACE_BEGIN in text:
        for line in text.rsplit(TRACE_BEGIN, maxsplit=1)[-1].splitlines()[1:]:
            if line and not line[0].isspace() and (raised := _RAISED.match(line)):
                return _sentence(raised[1], raised[2] or "")
    lines = [line.removeprefix(": ") for line in text.strip().splitlines()]
    if len(lines) > 1 and lines[0].startswith(_JAVA_CALL) and (raised := _RAISED.match(lines[1])):
        return _sentence(raised[1], raised[2] or "")
    return _sentence(type(error).__name__, next(iter(lines), ""))


def _sentence(kind: str, message: str) -> str:
    line = (
        "".join(letter if letter.isprintable() else " " for letter in message).strip().rstrip(".")
    )
    if len(line) > MESSAGE_LENGTH_MAX:
        line = f"{line[:MESSAGE_LENGTH_MAX]}…"
    return f"{kind}: {line}" if line else kind


def ship_code_of(transform: Callable[..., object] | None, session: object) -> None:
    """Send the user's code to a session, and pickle the transform's module by value.

    The workers of a warm server may lack that module or have an old version of it. Without a
    transform, a source may still have code.
    """
    from pyspark import cloudpickle

    name = getattr(transform, "__module__", "")
    shipped_code.send_users_code(session, name)
    module = sys.modules.get(name)
    # cloudpickle always pickles a script's functions by value; each worker has this project.
    if module is not None and name.partition(".")[0] not in ("__main__", shipped_code.OWN_PACKAGE):
        cloudpickle.register_pickle_by_value(module)
