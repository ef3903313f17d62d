"""Runs of a real code server: forked, with the user's current code, and independent afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from dagster_leasehold.lease_store.process_sessions import has_ended
from dagster_leasehold.orchestration.instance import embedded_text
from dagster_leasehold.orchestration.settings import Settings
from tests.dagster_deployment import ROOT, DagsterDeployment, dagster_deployment
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.dagster_processes, pytest.mark.timeout(600)]
RUN_S = 60.0
DEFINITIONS = """
import json
import os
import time
from pathlib import Path

import dagster as dg

import prices

HERE = Path(__file__).parent


@dg.op
def tell(context):
    answer = {"price": prices.PRICE, "process": os.getpid()}
    (HERE / context.run_id).write_text(json.dumps(answer))
    while (HERE / "hold").exists():
        time.sleep(0.1)


@dg.job(executor_def=dg.in_process_executor)
def prices_of_today():
    tell()


definitions = dg.Definitions(jobs=[prices_of_today])
"""
LAUNCHING = """
import dagster as dg

import prices


class Launcher(dg.DefaultRunLauncher):
    pass
"""
CONFIGURED = """
run_launcher:
  module: launching
  class: Launcher
"""
AGENT = """
import os
import sys
import time
from pathlib import Path

import dagster as dg

from dagster_leasehold.orchestration.supervision import forked_programs, interrupts
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess

forked_programs.make_forkable("-m", os.environ, forked_programs.NODE_MODULES)
log, environment = Path(__file__).with_name("forked.log"), os.environ
command = [sys.executable, *sys.argv[1:]]
child = ChildProcess("the server", command, log=log, environment=environment, forked=True)
with interrupts.ended_by_signals(), dg.DagsterInstance.get(), child:
    while child.exit_code() is None:
        time.sleep(0.1)
    os._exit(0)  # as if it was killed, so that it does not end the runs
"""
LAUNCH = """mutation ($selector: JobOrPipelineSelector!) {
    launchRun(executionParams: {selector: $selector, runConfigData: {}}) {
        __typename ... on LaunchRunSuccess { run { runId } } } }"""


class Shop:
    """A project with a job, and a deployment that runs it."""

    def __init__(self, folder: Path, deployment: DagsterDeployment) -> None:
        self.folder = folder
        self._deployment = deployment
        self._instance = DagsterInstance.from_config(str(deployment.settings.dagster_home))

    def launch(self) -> str:
        """Launch a run, and return its id."""
        selector = {
            "repositoryLocationName": "leasehold",
            "repositoryName": "__repository__",
            "pipelineName": "prices_of_today",
        }
        launched = self._deployment.graphql(LAUNCH, selector=selector)["launchRun"]
        return launched["run"]["runId"]

    def answer_of(self, run: str) -> dict[str, object]:
        """Return the text that a run has written."""
        text = wait_for("a run's price", lambda: self._text(run), RUN_S)
        return json.loads(text)

    def ended(self, run: str) -> DagsterRun:
        """Return a run when it has ended."""

        def finished() -> DagsterRun | None:
            stored = self._instance.get_run_by_id(run)
            return stored if stored and stored.is_finished else None

        return wait_for("the end of a run", finished, RUN_S)

    def _text(self, run: str) -> str:
        path = self.folder / run
        return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("server_is_fork", [False, True])
def test_forked_runs_use_the_current_code_and_outlive_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_is_fork: bool
) -> None:
    """The configuration of Dagster's instance names a class of the user's, which loads the prices.

    So they are loaded before the fork, and if the server is a fork as well, before that one.
    """
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "shop.py").write_text(DEFINITIONS)
    (tmp_path / "prices.py").write_text("PRICE = 1\n")
    (tmp_path / "launching.py").write_text(LAUNCHING)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    settings = Settings(home=tmp_path / "home")
    text = f"{embedded_text()}{CONFIGURED}"
    starter = [str(tmp_path / "agent.py")] if server_is_fork else []
    with dagster_deployment(
        settings, module="shop", environment=path, dagster_yaml=text, starter=starter
    ) as deployment:
        shop = Shop(tmp_path, deployment)
        (tmp_path / "hold").touch()
        first = shop.launch()
        answer = shop.answer_of(first)
        assert answer["price"] == 1
        forking = psutil.Process(int(str(answer["process"]))).parent()
        assert forking is not None
        server = forking.parents()[0]
        assert "--port" in server.cmdline()
        assert (os.getpid() != server.ppid()) == server_is_fork
        assert forking.num_threads() < server.num_threads()

        # Longer, so that it is another file for Python even within the same second.
        (tmp_path / "prices.py").write_text("PRICE = 1 + 1\n")
        second = shop.launch()
        assert shop.answer_of(second)["price"] == 2, "the server was not started again"

        forking.kill()
        wait_for("the end of the server", lambda: has_ended(server), RUN_S)
        (tmp_path / "hold").unlink()
        for run in (first, second):
            assert shop.ended(run).status is DagsterRunStatus.SUCCESS
