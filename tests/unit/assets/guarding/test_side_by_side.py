"""Works side by side: one that hangs keeps no other one waiting, and none is lost."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from dagster_leasehold.assets.guarding.side_by_side import SideBySide

PATIENCE_S = 30.0


def test_a_hanging_call_does_not_delay_others() -> None:
    free = threading.Event()
    works: SideBySide[str] = SideBySide(at_once=2)
    works.start([lambda: "late" if free.wait(PATIENCE_S) else "never"])
    works.start([partial(str, number) for number in range(20)])
    results: list[str] = []
    while len(results) < 20:
        results += works.done(PATIENCE_S)
    assert sorted(results, key=int) == [str(number) for number in range(20)]
    assert works.done() == []
    assert works.in_flight == 1
    free.set()
    assert works.done(None) == ["late"]
    assert works.in_flight == 0


def test_an_error_of_a_call_is_raised_when_its_result_is_read() -> None:
    works: SideBySide[int] = SideBySide()
    works.start([lambda: 1 // 0])
    with pytest.raises(ZeroDivisionError):
        works.done(PATIENCE_S)
    assert works.in_flight == 0


def test_calls_that_have_not_started_can_be_dropped() -> None:
    free = threading.Event()
    works: SideBySide[bool] = SideBySide(at_once=1)
    begun = threading.Event()
    works.start([lambda: begun.set() or free.wait(PATIENCE_S), *[lambda: False] * 5])
    assert begun.wait(PATIENCE_S)
    works.drop()
    free.set()
    assert works.done(None) == [True]
    assert works.in_flight == 0
