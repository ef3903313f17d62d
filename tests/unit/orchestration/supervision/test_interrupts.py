"""Signals: the first one ends a block, wherever it is, and none of them is lost or too early."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

from dagster_leasehold.orchestration.supervision.interrupts import (
    deferred_signals,
    ended_by_signals,
    stop_event,
)

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_ends_the_block_and_later_ones_wait(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    cleaned: list[str] = []

    def work() -> None:
        with ended_by_signals():
            try:
                kill(number)
            finally:
                for impatient in (signal.SIGINT, signal.SIGTERM):
                    kill(impatient)
                cleaned.append("all children have ended")

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert cleaned
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == "Stopping; this takes a few seconds.\n"


class Finalized:
    """Something whose finalizer is at work when a signal arrives."""

    def __del__(self) -> None:
        kill(signal.SIGINT)
        time.sleep(0.01)


def within_a_finalizer() -> None:
    Finalized()


def within_a_callback() -> None:
    def gone(_: weakref.ref[Finalized]) -> None:
        kill(signal.SIGINT)
        time.sleep(0.01)

    thing = threading.Event()
    reference = weakref.ref(thing, gone)
    del thing
    assert reference() is None


def within_code_that_forgets_it() -> None:
    """As code in C does that takes every error for the same answer, without a word."""
    with suppress(BaseException):
        kill(signal.SIGINT)
        time.sleep(0.01)


@pytest.mark.parametrize(
    "drop", [within_a_finalizer, within_a_callback, within_code_that_forgets_it]
)
def test_an_interrupt_that_python_drops_is_raised_again(
    drop: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Real: imports and collections run such code, and a demo continued after Ctrl-C there."""

    def work() -> None:
        with ended_by_signals():
            drop()
            time.sleep(10)

    hook, alarm = sys.unraisablehook, signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert sys.unraisablehook is hook
    assert signal.getsignal(signal.SIGALRM) is alarm
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert capfd.readouterr().err == "Stopping; this takes a few seconds.\n"


def test_an_interruption_in_progress_is_raised_once() -> None:
    """However long the block takes to end, and although it is logged and raised again."""
    seen: list[str] = []

    def work() -> None:
        with ended_by_signals():
            try:
                try:
                    kill(signal.SIGINT)
                finally:
                    time.sleep(0.1)
                    seen.append("cleaned")
            except BaseException as error:
                time.sleep(0.1)
                seen.append(type(error).__name__)
                raise

    with pytest.raises(KeyboardInterrupt):
        work()
    time.sleep(0.1)
    assert seen == ["cleaned", "Interruption"]


def test_other_errors_of_finalizers_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty:
        def __del__(self) -> None:
            raise ValueError("of a finalizer")

    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: reported.append(it.exc_value))
    with ended_by_signals():
        Faulty()
    assert [str(error) for error in reported] == ["of a finalizer"]


def test_a_closed_terminal_does_not_prevent_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(descriptor: int, text: bytes) -> int:
        raise BrokenPipeError(descriptor, text)

    monkeypatch.setattr(os, "write", gone)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        kill(signal.SIGHUP)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_can_set_an_event_instead_of_ending_the_block(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_event() as stop:
        assert not stop.is_set()
        kill(number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


def test_a_signal_waits_for_the_end_of_a_few_steps() -> None:
    steps: list[str] = []

    def work() -> None:
        with ended_by_signals():
            with deferred_signals():
                kill(signal.SIGTERM)
                steps.append("in the block")
            steps.append("after it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["in the block"]


def test_a_signal_is_delivered_though_the_steps_fail() -> None:
    """Goal: a child that cannot be started while its parent is stopped."""

    def fail() -> None:
        with deferred_signals():
            kill(signal.SIGTERM)
            raise FileNotFoundError

    with stop_event() as stop:
        with pytest.raises(FileNotFoundError):
            fail()
        assert stop.wait(10)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred_signals():
            kill(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_threads_are_never_interrupted_and_need_not_wait() -> None:
    entered: list[bool] = []

    def work() -> None:
        with deferred_signals():
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered
