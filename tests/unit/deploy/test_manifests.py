"""The Kubernetes manifests: the API's own schema, and required content."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dagster_leasehold.orchestration.supervision.health_pages import HEALTH, READINESS
from tests.own_environments import PackagesMissing, own_environment
from tests.unit.deploy.command_lines import parsed
from tests.unit.deploy.manifests import DEPLOY, FOLDER, containers, manifests, pods, probes

VALIDATOR = ("kubernetes-validate==1.37.0",)
# The oldest that knows all fields in use, and the newest of the validator.
VERSIONS = ("1.29", "1.37")


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_match_the_schema_of_kubernetes(tmp_path: Path, version: str) -> None:
    try:
        program = own_environment("kubernetes-validate", VALIDATOR) / "kubernetes-validate"
    except PackagesMissing as error:
        pytest.skip(str(error))

    def judged(*files: Path) -> subprocess.CompletedProcess[str]:
        command = (program, "--strict", "-k", version, *files)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    files = sorted(FOLDER.glob("*.yaml"))
    done = judged(*files)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    text = (FOLDER / "nodes.yaml").read_text("utf-8")
    wrong.write_text(text.replace("minReadySeconds", "minReadySecond"), "utf-8")
    assert judged(wrong).returncode != 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_combines_the_manifests() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", DEPLOY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    kinds = sorted(each["kind"] for each in built)
    assert kinds == sorted([*(each["kind"] for each in manifests()), *["ConfigMap"] * 3])


def test_every_named_file_exists() -> None:
    root: dict[str, Any] = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text("utf-8"))
    assert {DEPLOY / each for each in root["resources"]} == set(FOLDER.glob("*.yaml"))
    for each in root["configMapGenerator"]:
        assert all((DEPLOY / file).is_file() for file in each.get("files", []))


def applied(command: str) -> set[str]:
    """Return the objects that `kubectl apply -k deploy` selects and that create pods."""
    selector = re.search(r"--selector '(\S+) in \((.+)\)'", command)
    assert (selector is None) == ("--selector" not in command)
    return {
        f"{each['kind']}/{each['metadata']['name']}".lower()
        for each in manifests()
        if "template" in each.get("spec", {})
        and (selector is None or each["metadata"]["labels"][selector[1]] in selector[2].split(", "))
    }


def test_an_update_runs_the_upgrade_then_the_daemon_then_the_agents() -> None:
    """Method: the objects that each command of the page changes or waits for, in order."""
    page = (DEPLOY.parent / "docs/how-to/deploy.md").read_text("utf-8")
    [commands] = re.findall(r"^kubectl .*delete job.*\n((?:kubectl .+\n)+)```", page, re.M)
    lines = commands.splitlines()
    rolled: list[set[str]] = []
    for apply, wait in zip(lines[::2], lines[1::2], strict=True):
        assert apply.startswith("kubectl apply -k deploy")
        rolled.append(applied(apply) - set[str]().union(*rolled))
        assert wait.split()[-1] in rolled[-1]
    assert rolled == [
        {"job/leasehold-upgrade"},
        {"deployment/leasehold-daemon", "deployment/leasehold-webserver"},
        {"statefulset/leasehold-node"},
    ]


def test_probes_use_ports_that_the_commands_open() -> None:
    asked = 0
    for _, pod in pods():
        for container in containers(pod):
            _, options = parsed(container["args"])
            for probe in probes(container):
                [place] = [probe[key] for key in ("grpc", "httpGet", "exec") if key in probe]
                if "port" in place:
                    opened = {options["port"]} if "port" in options else set[int]()
                    if options.get("health"):
                        opened.add(int(options["health"].rpartition(":")[2]))
                    assert place["port"] in opened
                    assert {each["containerPort"] for each in container["ports"]} == opened
                    asked += 1
    assert asked == 10


def test_probes_use_the_right_health_pages() -> None:
    by_name = {each["name"]: each for _, pod in pods() for each in pod["containers"]}
    for name in ("agent", "daemon"):
        assert by_name[name]["readinessProbe"]["httpGet"]["path"] == READINESS
        assert by_name[name]["livenessProbe"]["httpGet"]["path"] == HEALTH
    # A daemon that has not beaten yet is not ready, and that is no reason to end it.
    assert by_name["daemon"]["startupProbe"]["httpGet"]["path"] == HEALTH


def test_no_container_is_root_or_without_limits() -> None:
    for _, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in containers(pod):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


def test_secrets_are_referenced_and_not_written() -> None:
    assert all(each["kind"] != "Secret" for each in manifests())
    for _, pod in pods():
        for container in containers(pod):
            assert {"secretRef": {"name": "leasehold"}} in container["envFrom"]


def test_nodes_keep_their_names_and_leave_one_at_a_time() -> None:
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in manifests()}
    nodes = by_kind["StatefulSet", "leasehold-node"]["spec"]
    labels = nodes["template"]["metadata"]["labels"]
    assert nodes["selector"]["matchLabels"] == labels
    assert by_kind["Service", nodes["serviceName"]]["spec"]["selector"] == labels
    budget = by_kind["PodDisruptionBudget", "leasehold-node"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == labels
    daemon = by_kind["Deployment", "leasehold-daemon"]["spec"]
    assert (daemon["replicas"], daemon["strategy"]) == (1, {"type": "Recreate"})
