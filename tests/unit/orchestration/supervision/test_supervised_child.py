"""A child that died is started again, each time a little later; the clock is moved by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_leasehold.orchestration.supervision.child_processes import (
    PAUSE_MAX_S,
    STEADY_S,
    ChildProcess,
    SupervisedChild,
)


class Child(ChildProcess):
    """A child whose death a test decides."""

    def __init__(self) -> None:
        self.name, self.log = "the daemon", Path("daemon.log")
        self.code: int | None = None
        self.started = 0
        self.last = ""

    def __enter__(self) -> Child:
        self.code = None
        self.started += 1
        return self

    def exit_code(self) -> int | None:
        return self.code

    def last_line(self) -> str:
        return self.last

    def stop(self) -> None:
        return


class Scene:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.child = Child()
        self.supervised = SupervisedChild(self.child, lambda: self.now_s, explained=[2])

    def look_for(self, seconds: float) -> list[str]:
        message: list[str] = []
        for _ in range(int(seconds)):
            self.now_s += 1.0
            if sentence := self.supervised.check():
                message.append(sentence)
        return message


def test_a_live_child_is_not_restarted() -> None:
    scene = Scene()
    assert scene.look_for(1_000) == []
    assert scene.child.started == 0


def test_a_dead_child_is_restarted_after_a_bounded_wait() -> None:
    scene, waits = Scene(), list[float]()
    for _ in range(8):
        scene.child.code = 1
        (message,) = scene.look_for(1)
        before, at = scene.child.started, scene.now_s
        while scene.child.started == before:
            assert scene.look_for(1) == [], "it says so once"
        waits.append(scene.now_s - at)
    assert message == ("The daemon ended with code 1 and restarts in 30 s: see daemon.log.")
    assert waits[:3] == [1.0, 2.0, 4.0]
    assert waits[-1] == PAUSE_MAX_S


def test_a_child_that_ran_for_long_is_restarted_at_once() -> None:
    scene = Scene()
    for _ in range(6):
        scene.child.code = 1
        scene.look_for(40)
    scene.look_for(STEADY_S + 1)
    scene.child.code = 1
    (message,) = scene.look_for(1)
    assert "restarts in 1 s" in message


def test_a_user_mistake_is_reported_once_and_retried() -> None:
    """An agent that found no database comes by itself when there is one."""
    scene = Scene()
    for attempt in range(3):
        scene.child.code, scene.child.last = 2, "Another live process answers to node 'a'."
        sentences = scene.look_for(PAUSE_MAX_S + 1)
        assert sentences == ([] if attempt else [
            "The daemon ended: Another live process answers to node 'a'. Retrying every 30 s."
        ])  # fmt: skip
    assert scene.child.started == 3
    assert scene.look_for(1_000) == [], "it lives"


def test_a_child_that_cannot_be_started_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.child.code = 1
    scene.look_for(1)
    with monkeypatch.context() as full:

        def refuse(_: object) -> object:
            raise OSError(28, "No space left on device")

        full.setattr(Child, "__enter__", refuse)
        assert scene.look_for(100) == [
            "The daemon could not be started: No space left on device. Retrying every 30 s."
        ]
    scene.look_for(PAUSE_MAX_S)
    assert scene.child.started == 1
