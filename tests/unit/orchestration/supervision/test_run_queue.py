"""Runs of the sensors begin at once, unless they would wait in Dagster's queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, SubmitRunContext, job, op
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from dagster_leasehold.assets.partitions import NODE_TAG, PARTITION_TAG, STREAM_TAG
from dagster_leasehold.orchestration.supervision import run_queue
from dagster_leasehold.orchestration.supervision.run_queue import PromptRunCoordinator

ORIGIN = RemoteJobOrigin(
    RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("localhost", port=1), "orders"), "work"
)
OF_SENSOR = {NODE_TAG: "node-a", STREAM_TAG: "demo"}
LIMITS = [
    {"key": PARTITION_TAG, "value": {"applyLimitPerUniqueValue": True}, "limit": 1},
    {"key": NODE_TAG, "value": {"applyLimitPerUniqueValue": True}, "limit": 3},
    {"key": "team", "value": "data", "limit": 2},
    {"key": "backfill", "limit": 2},
]


@op
def nothing() -> None: ...


@job
def work() -> None:
    nothing()


class Deployment:
    """An instance with the queue, and a launcher that records its runs."""

    def __init__(self, folder: Path, **concurrency: Any) -> None:
        queue = {"module": PromptRunCoordinator.__module__, "class": PromptRunCoordinator.__name__}
        runs = {"max_concurrent_runs": 6, "tag_concurrency_limits": LIMITS} | concurrency
        config = {"run_coordinator": queue, "concurrency": {"runs": runs}}
        (folder / "dagster.yaml").write_text(yaml.safe_dump(config))
        self.instance = DagsterInstance.from_config(str(folder))
        self.launched: list[str] = []
        self.problem: Exception | None = None
        self.instance.run_launcher.launch_run = self._launch

    def _launch(self, context: Any) -> None:
        self.launched.append(context.dagster_run.run_id)
        if self.problem is not None:
            raise self.problem

    def submit(self, **tags: str) -> DagsterRun:
        return self.submit_with(OF_SENSOR | tags)

    def submit_with(self, tags: dict[str, str]) -> DagsterRun:
        workspace: Any = None
        run = self.create(DagsterRunStatus.NOT_STARTED, tags)
        return self.instance.run_coordinator.submit_run(SubmitRunContext(run, workspace))

    def create(self, status: DagsterRunStatus, tags: dict[str, str]) -> DagsterRun:
        return self.instance.create_run_for_job(
            work, tags=tags, status=status, remote_job_origin=ORIGIN
        )

    def at_work(self, number: int, tags: dict[str, str]) -> None:
        for _ in range(number):
            self.create(DagsterRunStatus.STARTED, tags)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_queue, "LAUNCH_S", 20.0)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    with made.instance:
        yield made


def test_a_run_of_a_sensor_starts_at_once(deployment: Deployment) -> None:
    run = deployment.submit()
    assert deployment.launched == [run.run_id]
    assert run.status is DagsterRunStatus.STARTING


def test_manual_and_backfill_runs_are_queued(deployment: Deployment) -> None:
    assert deployment.submit_with({NODE_TAG: "node-a"}).status is DagsterRunStatus.QUEUED
    assert deployment.launched == []


def test_no_run_overtakes_a_queued_one(deployment: Deployment) -> None:
    deployment.create(DagsterRunStatus.QUEUED, {})
    assert deployment.submit().status is DagsterRunStatus.QUEUED


@pytest.mark.parametrize(
    ("others", "at_work", "tags"),
    [
        ({}, 5, {}),
        ({NODE_TAG: "node-a"}, 2, {}),
        ({"team": "data"}, 1, {"team": "data"}),
        ({"backfill": "x"}, 1, {"backfill": "y"}),
        ({}, 0, {PARTITION_TAG: "3"}),
    ],
)
def test_a_run_near_a_limit_is_queued(
    deployment: Deployment, others: dict[str, str], at_work: int, tags: dict[str, str]
) -> None:
    """The limit itself is Dagster's to keep: another run might begin at the same moment."""
    deployment.at_work(at_work, others)
    assert deployment.submit(**tags).status is DagsterRunStatus.QUEUED
    assert deployment.launched == []


@pytest.mark.parametrize(
    ("others", "at_work", "tags"),
    [
        ({}, 4, {}),
        ({NODE_TAG: "node-b"}, 3, {}),
        ({NODE_TAG: "node-a"}, 1, {}),
        ({"team": "other"}, 2, {"team": "data"}),
        ({"team": "data"}, 2, {"team": "other"}),
    ],
)
def test_distant_and_unrelated_limits_do_not_queue_a_run(
    deployment: Deployment, others: dict[str, str], at_work: int, tags: dict[str, str]
) -> None:
    deployment.at_work(at_work, others)
    assert deployment.submit(**tags).status is DagsterRunStatus.STARTING


@pytest.mark.parametrize(("most", "begins"), [(-1, True), (0, False), (1, False), (2, True)])
def test_a_limit_for_all_runs_counts(tmp_path: Path, most: int, begins: bool) -> None:
    made = Deployment(tmp_path, max_concurrent_runs=most)
    with made.instance:
        made.submit()
        assert len(made.launched) == begins


def test_a_failed_launch_fails_the_run_and_not_the_sensor(deployment: Deployment) -> None:
    deployment.problem = RuntimeError("Node node-a takes no runs.")
    run = deployment.submit()
    assert run.status is DagsterRunStatus.FAILURE
    messages = [str(each.message) for each in deployment.instance.all_logs(run.run_id)]
    assert any("takes no runs" in message for message in messages)


def test_a_silent_node_delays_neither_the_sensor_nor_other_nodes(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_queue, "LAUNCH_S", 0.2)
    launch, answers = deployment.instance.run_launcher.launch_run, threading.Event()

    def hang(context: Any) -> None:
        launch(context)
        assert answers.wait(20.0)

    deployment.instance.run_launcher.launch_run = hang
    hanging = deployment.submit()
    assert hanging.status is DagsterRunStatus.STARTING
    queued = deployment.submit()
    assert queued.status is DagsterRunStatus.QUEUED
    answers.set()
    deployment.instance.delete_run(queued.run_id)
    while deployment.submit().status is not DagsterRunStatus.STARTING:
        deployment.instance.delete_run(deployment.instance.get_runs()[0].run_id)
