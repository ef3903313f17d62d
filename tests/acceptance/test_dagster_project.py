"""A project of `create-dagster` with streams in YAML and Python: each command of the how-to."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

import pytest

from dagster_leasehold.assets.spark.connect_server import stop as stop_spark
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from tests.acceptance.leasehold_process import environment
from tests.acceptance.wheel_terminal import Terminal, programs, terminal
from tests.dagster_deployment import DagsterDeployment, port_open
from tests.ports import free_port
from tests.unit.docs.test_docs import DOCS, fences
from tests.waiting import wait_for

__all__ = ["programs", "terminal"]
PAGE = DOCS / "how-to/dagster-project.md"
START_S, RUN_S = 120.0, 180.0
LAUNCH = """mutation ($params: ExecutionParams!) {
    launchPipelineExecution(executionParams: $params) {
        __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
RUN = "query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"
PARTITIONS = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
    ... on AssetNode { partitionKeys groupName owners { ... on TeamAssetOwner { team } }
        assetMaterializations(partitions: ["0"], limit: 9) {
            runId } } } }"""
KEY = ["web", "visits"]


class Project(Terminal):
    """The project of the page, which is not installed, and the terminal that is open in it."""

    def write(self, blocks: Iterable[str]) -> None:
        """Write the files of the page whose first line has their path."""
        for block in blocks:
            first, _, text = block.partition("\n")
            if first.startswith("# src/"):
                (self.folder / first[2:]).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / first[2:]).write_text(text)

    def dev(self, command: str, port: int) -> ChildProcess:
        """Return `dg dev` on a free port, not started yet."""
        return ChildProcess(
            command,
            [*shlex.split(command), "--port", str(port)],
            log=self.folder.parent / "dg-dev.log",
            environment=environment() | self.variables,
            folder=self.folder,
        )


@pytest.mark.release
@pytest.mark.spark
@pytest.mark.dagster_processes
def test_every_command_of_the_page_works_in_a_project_of_create_dagster(terminal: Terminal) -> None:
    commands = [line[2:] for block in fences(PAGE, "console") for line in block.splitlines()]
    create, enter, components, stream, hours, *checks, load, dev, status, cat = commands
    terminal.type(create)
    project = Project(terminal.programs, terminal.folder / enter.removeprefix("cd "))
    listed = project.type(components)
    assert "dagster_leasehold.ShardStreamComponent" in listed
    assert "dagster_leasehold.HourlyAssetComponent" in listed
    project.type(stream)
    assert project.type("dg check yaml"), "what is scaffolded is valid"
    project.type(hours)
    project.write([*fences(PAGE, "yaml"), *fences(PAGE, "python")])
    (settings,) = fences(PAGE, "toml")
    # The page names the nodes of another deployment: `dg dev` has one.
    (project.folder / "leasehold.toml").write_text(settings.replace('["east", "west"]', '["a"]'))
    assert checks == ["dg check yaml", "dg check defs"]
    for check in checks:
        assert "successfully" in project.type(check)
    check_kafka_stream(project, checks)
    visits = [json.dumps({"path": f"/{number}", "status": 200}) for number in range(20)]
    (project.folder / "visits.jsonl").write_text("\n".join(visits))
    assert "20 records" in project.type(load)

    port = free_port()
    home = Settings(home=project.folder / ".leasehold")
    deployment = DagsterDeployment(home, f"http://127.0.0.1:{port}")
    server = project.dev(dev, port)
    try:
        with server:
            wait_for("dg dev", lambda: port_open(port), START_S)
            materialize(deployment)
        rows = [json.loads(line) for line in project.type(cat).splitlines()]
        assert len([row for row in rows if row["shard_id"] == "0"]) == 10
        assert {row["path"] for row in rows} <= {f"/{number}" for number in range(20)}
        assert "web.visits" in project.type(status)
    finally:
        stop_spark(home.spark_folder)
        print(server.log.read_text(errors="replace")[-6_000:])  # noqa: T201


def check_kafka_stream(project: Project, checks: list[str]) -> None:
    """Let `dg` check the Kafka stream beside the others, and versions with a mistake."""
    file = project.folder / "src/web_logs/defs/orders/defs.yaml"
    [text] = [block for block in fences(PAGE, "yaml") if "KAFKA" in block]
    file.parent.mkdir()
    file.write_text(text.replace("name: web.visits", "name: web.orders"))
    project.exported["KAFKA"] = "127.0.0.1:9"
    for check in checks:
        assert "successfully" in project.type(check)
    file.write_text(text.replace("commit_interval_s: 5", "commit_interval_s: -5"))
    assert "-5 is less than the minimum of 0" in project.type(f"{checks[0]} {file.parent}", code=1)
    file.write_text(text.replace("commit_interval_s", "commit_intervall_s"))
    # Dagster 1.13 checks one file of each type, unless the command names a file.
    for check in (f"{checks[0]} {file.parent}", checks[1]):
        refused = project.type(check, code=1)
        assert "commit_intervall_s" in refused
        assert "orders/defs.yaml" in refused
    file.unlink()
    file.parent.rmdir()


def materialize(deployment: DagsterDeployment) -> None:
    """Materialize shard 0 as its page does; a run of the sensor may have consumed it before."""

    def node() -> dict[str, object]:
        return deployment.graphql(PARTITIONS, key={"path": KEY})["assetNodeOrError"]

    wait_for("the partitions", lambda: node().get("partitionKeys") == ["0", "1"], START_S)
    assert (node()["groupName"], node()["owners"]) == ("streams", [{"team": "web"}])
    params = {
        "mode": "default",
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "0"}]},
        "runConfigData": {},
        "selector": {
            "repositoryName": "__repository__",
            "repositoryLocationName": "web-logs",
            "pipelineName": "__ASSET_JOB",
            "assetSelection": [{"path": KEY}],
        },
    }
    launched = deployment.graphql(LAUNCH, params=params)["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run = launched["run"]["runId"]

    def ended() -> str | None:
        status = deployment.graphql(RUN, id=run)["runOrError"]["status"]
        return status if status in ("SUCCESS", "FAILURE", "CANCELED") else None

    assert wait_for("the run", ended, RUN_S) == "SUCCESS"
    assert run in {event["runId"] for event in node()["assetMaterializations"]}
