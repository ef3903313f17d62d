"""Doubles of Spark: sessions of each kind, their resource, and a clock for the stall guard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

PATIENCE_S = 60.0


def until(holds: Callable[[], bool]) -> bool:
    event = threading.Event()
    return any(holds() or event.wait(0.01) for _ in range(int(PATIENCE_S / 0.01)))


class Driver:
    """A session of a driver in this process: its stages, by their number of running tasks."""

    def __init__(self, *running: int) -> None:
        self.stages: dict[int, Any] = {
            number: SimpleNamespace(stageId=number, numActiveTasks=tasks, numCompletedTasks=0)
            for number, tasks in enumerate(running)
        }
        self.tags: list[str] = []
        self.interrupted: list[str] = []
        self.sparkContext = SimpleNamespace(
            statusTracker=lambda: SimpleNamespace(
                getActiveStageIds=lambda: [*self.stages], getStageInfo=self.stages.get
            )
        )
        self.addTag, self.removeTag = self.tags.append, self.tags.remove
        self.interruptTag = self.interrupted.append


class Client:
    """A session of a Connect server, which speaks of its jobs now and then."""

    def __init__(self) -> None:
        self.handlers: list[Callable[..., None]] = []
        self.registerProgressHandler = self.handlers.append
        self.removeProgressHandler = self.handlers.remove

    def say(self, inflight: int, completed: int | None = None) -> None:
        stage = SimpleNamespace(stage_id=0, num_completed_tasks=completed)
        stages = None if completed is None else [stage]
        for handler in self.handlers:
            handler(stages=stages, inflight_tasks=inflight, operation_id="o", done=False)


Client.__module__ = "pyspark.sql.connect.session"


class SparkDouble:
    """Stands in for a `SparkResource` at an address: a renewal gives the next of its sessions."""

    mode = "sc://host:15002"

    def __init__(self, *sessions: object) -> None:
        self.sessions = [*sessions]
        self.renewals = 0

    @property
    def spark_session(self) -> object:
        return self.sessions[min(self.renewals, len(self.sessions) - 1)]

    def renewed_session(self) -> object | None:
        self.renewals += 1
        return self.sessions[self.renewals] if self.renewals < len(self.sessions) else None

    def end_server(self) -> bool:
        return False
