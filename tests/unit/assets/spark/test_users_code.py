"""The user's code on Spark: how it travels, and its failures in one line."""

from __future__ import annotations

import pytest
from pyspark import cloudpickle  # noqa: TID253

from dagster_leasehold.assets.parsing import parse_json
from dagster_leasehold.assets.spark.connect_watch import without_noise
from dagster_leasehold.assets.spark.users_code import session_is_gone, ship_code_of, users_error

TRACE = """[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):
  File "x.py", line 3, in f
    raise ValueError("bad\\tthing")
my.module.BadValue: it is
  wrong
 SQLSTATE: 38000
"""


def test_the_last_line_of_a_trace_is_what_the_user_raised() -> None:
    assert users_error(RuntimeError(TRACE)) == "BadValue: it is"


def test_a_chained_trace_gives_the_last_exception() -> None:
    text = "Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nTraceback (most recent call"
    assert users_error(RuntimeError(f"{text} last):\n  y\nValueError: b")) == "ValueError: b"


def test_an_error_of_java_is_reported_instead_of_the_call_that_raised_it() -> None:
    text = "An error occurred while calling o7.collectToPython.\n: org.apache.SparkException: Job"
    assert (
        users_error(RuntimeError(f"{text} aborted.\n\tat x.y.z")) == "SparkException: Job aborted"
    )


def test_other_errors_are_reported_by_type_and_first_line() -> None:
    assert users_error(ZeroDivisionError("division by zero")) == (
        "ZeroDivisionError: division by zero"
    )
    assert users_error(KeyError()) == "KeyError"
    assert "\x1b" not in users_error(ValueError("\x1b[31mred\nsecond"))
    assert len(users_error(ValueError("x" * 10_000))) < 400


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("StatusCode.UNAVAILABLE: failed to connect to all addresses", True),
        ("[INVALID_HANDLE.SESSION_CLOSED] gone", True),
        ("[INVALID_HANDLE.SESSION_CHANGED] The server was restarted", True),
        ("[INVALID_HANDLE.OPERATION_NOT_FOUND] no such operation", True),
        ("[INVALID_HANDLE.OPERATION_ABANDONED] nobody has asked for it", True),
        ("[NO_ACTIVE_SESSION] No active Spark session found.", True),
        ("Received incorrect server side session identifier for request.", True),
        ("Cannot call methods on a stopped SparkContext.", True),
        ("[UNRESOLVED_COLUMN] nope", False),
        ("Traceback (most recent call last):\n  x\nOSError: Connection refused", False),
    ],
)
def test_a_lost_session_is_distinguished_from_a_failed_job(text: str, gone: bool) -> None:
    assert session_is_gone(RuntimeError(text)) is gone


def test_only_broken_pipe_traces_are_left_out_of_the_log() -> None:
    begin = "Traceback (most recent call last):\n"
    noise = [begin, "  File daemon.py\n", "BrokenPipeError: [Errno 32] Broken pipe\n"]
    real = [begin, "  File x.py\n", "ValueError: x\n"]
    cut = [begin, "  File x.py\n"]
    lines = ["one\n", *noise, "two\n", *real, *noise, *cut]
    assert list(without_noise(lines)) == ["one\n", "two\n", *real, *cut]


def test_only_the_users_code_travels_by_value() -> None:
    """Goal: an edited transform counts at once, and no worker gets a second copy of our classes."""
    module = __import__(__name__, fromlist=["_"])
    ship_code_of(parse_json, object())
    ship_code_of(test_the_last_line_of_a_trace_is_what_the_user_raised, object())
    try:
        assert module.__name__ in cloudpickle.list_registry_pickle_by_value()
        assert parse_json.__module__ not in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
