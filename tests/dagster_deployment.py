"""A real Dagster deployment for tests: code server, daemon and webserver on the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_leasehold.assets.spark.connect_server import stop as stop_spark
from dagster_leasehold.orchestration.instance import create_instance, embedded_text
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.child_processes import ChildProcess
from dagster_leasehold.orchestration.supervision.forking_server import PROGRAM
from tests.ports import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
START_S = 90.0
SWITCHED_S, KEPT_S = 10.0, 1.0
LOG_TAIL_CHARACTERS = 6_000


def port_open(port: int, host: str = "127.0.0.1") -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


@dataclass(frozen=True)
class DagsterDeployment:
    """The running deployment.

    Attributes:
        settings: the settings of its processes.
        url: the URL of the webserver.
    """

    settings: Settings
    url: str

    def graphql(self, query: str, **variables: object) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            answer = json.load(reply)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def locations(self) -> dict[str, str]:
        """Status of each code location; empty while the webserver does not answer."""
        query = """{ workspaceOrError { ... on Workspace { locationEntries {
            name loadStatus locationOrLoadError { __typename } } } } }"""
        try:
            entries = self.graphql(query)["workspaceOrError"]["locationEntries"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}
        return {row["name"]: row["locationOrLoadError"]["__typename"] for row in entries}

    def stop_sensor(self, name: str) -> None:
        """Switch a sensor off, again if a tick undid it (`takes_on`); its last tick has ended."""
        state = self.sensor_state(name, "id")

        def stopped() -> bool:
            done = self.graphql(
                "mutation ($id: String!) { stopSensor(id: $id) { __typename } }", id=state["id"]
            )
            assert done["stopSensor"]["__typename"] == "StopSensorMutationResult", done
            return self.takes_on(name, "STOPPED")

        wait_for(f"the stop of {name}", stopped, START_S)
        wait_for(f"the last tick of {name}", lambda: not self._is_ticking(name), START_S)

    def _is_ticking(self, name: str) -> bool:
        """Return True if the newest tick of a sensor is running."""
        newest = self.sensor_state(name, "ticks(limit: 1) { status }")["ticks"]
        return any(tick["status"] == "STARTED" for tick in newest)

    def start_sensor(self, name: str) -> None:
        query = """mutation ($s: SensorSelector!) {
            startSensor(sensorSelector: $s) { __typename } }"""
        done = self.graphql(query, s=self._selector(name))
        assert done["startSensor"]["__typename"] == "Sensor", done

    def takes_on(self, name: str, status: str) -> bool:
        """Return True if a sensor that was just switched has the new status, and keeps it.

        The daemon reads a sensor's state at the end of a tick and writes it back a few milliseconds
        later. A switch between the two is undone, and ticks continue as if it was never made (seen
        once in twenty runs on a busy machine; https://github.com/dagster-io/dagster/issues/7736).
        """
        deadline = time.monotonic() + SWITCHED_S
        while self.sensor_status(name) != status:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.25)
        time.sleep(KEPT_S)
        return self.sensor_status(name) == status

    def sensor_status(self, name: str) -> str:
        """`RUNNING` or `STOPPED`."""
        return self.sensor_state(name, "status")["status"]

    def skip_reasons(self, name: str) -> set[str]:
        """The skip reasons of a sensor's last ticks."""
        ticks = self.sensor_state(name, "ticks(limit: 50) { skipReason }")["ticks"]
        return {tick["skipReason"] for tick in ticks} - {None, ""}

    def sensor_state(self, name: str, fields: str) -> dict[str, Any]:
        query = f"""query ($s: SensorSelector!) {{ sensorOrError(sensorSelector: $s) {{
            ... on Sensor {{ sensorState {{ {fields} }} }} }} }}"""
        return self.graphql(query, s=self._selector(name))["sensorOrError"]["sensorState"]

    @staticmethod
    def _selector(name: str) -> dict[str, str]:
        return {
            "repositoryName": "__repository__",
            "repositoryLocationName": "leasehold",
            "sensorName": name,
        }


@contextmanager
def dagster_deployment(
    settings: Settings,
    *,
    module: str = "dagster_leasehold.orchestration.definitions",
    dagster_yaml: str | None = None,
    environment: Mapping[str, str] | None = None,
    location: str = "leasehold",
    beside: Mapping[str, str] | None = None,
    starter: Sequence[str] = (),
) -> Generator[DagsterDeployment]:
    """Start everything, wait until the code locations are loaded, and end everything.

    `beside` names further code locations, and the module of each. `starter` is a program of Python
    that starts a code server, whose arguments it gets. The end of every process's log is printed,
    so that a failing test shows it.
    """
    home = settings.home
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith("LEASEHOLD_")
    }
    child_environment = inherited | {
        "LEASEHOLD_HOME": str(home),
        "LEASEHOLD_NODES": json.dumps(list(settings.nodes)),
        "LEASEHOLD_SPARK": settings.spark.model_dump_json(exclude_defaults=True),
        "DAGSTER_HOME": str(settings.dagster_home),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    create_instance(settings, dagster_yaml or embedded_text())
    modules = {location: module, **(beside or {})}
    ports, web_port = {name: free_port() for name in modules}, free_port()
    workspace = home / "workspace.yaml"
    servers = [
        {"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": name}}
        for name, port in ports.items()
    ]
    workspace.write_text(json.dumps({"load_from": servers}))
    commands = {
        **{f"code-{name}": (
            *starter, "-m", PROGRAM, "api", "grpc", "-m", modules[name], "--port", str(port),
            "--host", "127.0.0.1", "--location-name", name) for name, port in ports.items()},
        "webserver": ("-m", "dagster_webserver", "-w", str(workspace),
                      "--host", "127.0.0.1", "--port", str(web_port)),
        "daemon": ("-m", "dagster._daemon", "run", "-w", str(workspace)),
    }  # fmt: skip
    deployment = DagsterDeployment(settings, f"http://127.0.0.1:{web_port}")
    logs = {name: home / f"{name}.log" for name in commands}
    with ExitStack() as stack:
        stack.callback(stop_spark, settings.spark_folder)
        stack.callback(_print_logs, logs)
        for name, command in commands.items():
            if name == "webserver":
                wait_for("the code servers", lambda: all(map(port_open, ports.values())), START_S)
            process = ChildProcess(
                name,
                [sys.executable, *command],
                log=logs[name],
                environment=child_environment,
                folder=home,
            )
            stack.enter_context(process)
        wait_for("the code locations", lambda: set(modules) <= set(deployment.locations()), START_S)
        locations = deployment.locations()
        assert locations == dict.fromkeys(modules, "RepositoryLocation"), locations
        yield deployment


def _print_logs(logs: Mapping[str, Path]) -> None:
    for name, path in logs.items():
        text = path.read_text(errors="replace") if path.exists() else ""
        print(f"---- {name} ----\n{text[-LOG_TAIL_CHARACTERS:]}")  # noqa: T201
