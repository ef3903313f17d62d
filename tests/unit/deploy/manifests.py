"""Reads the Kubernetes manifests of `deploy/kubernetes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.unit.deploy.command_lines import Program

DEPLOY = Path(__file__).parents[3] / "deploy"
FOLDER = DEPLOY / "kubernetes"


def manifests() -> list[dict[str, Any]]:
    files = sorted(FOLDER.glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text("utf-8"))]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the objects that create pods, and the pods' specifications."""
    for each in manifests():
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def programs() -> Iterator[Program]:
    """Yield the programs of the containers, and the commands of their probes."""
    for name, pod in pods():
        for container in containers(pod):
            where = f"kubernetes/{name}/{container['name']}"
            words = [each.replace("$(POD_NAME)", f"{name}-0") for each in container["args"]]
            yield Program(where, tuple(words), pod.get("terminationGracePeriodSeconds"))
            for probe in probes(container):
                if "exec" in probe:
                    yield Program(where, tuple(probe["exec"]["command"]))


def probes(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [container[key] for key in container if key.endswith("Probe")]
