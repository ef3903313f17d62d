"""All that the files in `deploy/` start, read by the parsers of the programs themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dagster_leasehold.orchestration.instance import production_text
from dagster_leasehold.orchestration.settings import DEFINITIONS_MODULE, LOCATION, Settings
from tests.unit.deploy import compose_file, manifests, systemd_units
from tests.unit.deploy.command_lines import HOME, LineRefused, Program, parsed

DEPLOY = Path(__file__).parents[3] / "deploy"
AFTER_LIMIT_S = 60
"""How much longer than its runs an agent may take: to hand over, to end its servers, and to go."""
PROGRAMS = [*systemd_units.programs(), *compose_file.programs(), *manifests.programs()]
FILES = [
    path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and "monitoring" not in path.parts
]
WEIGHED = re.compile(
    r"\s*(- )?(\w*(Sec|Max|NOFILE|Policy|Mode)=|Type=oneshot|Restart=)"
    r"|\s*(stop_grace_period|mem_limit|interval|timeout|retries|start_period|restart|ports|test"
    r"|replicas|minReadySeconds|maxUnavailable|terminationGracePeriodSeconds|resources"
    r"|startupProbe|livenessProbe|readinessProbe|backoffLimit):"
)
"""Keys whose values somebody weighed."""
COMMENT_ABOVE = 4
"""A comment stands at most so many lines above its value."""
PASSWORD = re.compile(r"""(?ix)
    \w*(password|secret|token|credential)\w* \s* [:=] \s* ["']? (?!\s|$|\{|"|'|\$|\?|false$)\S
    | ://[^/\s:]+:(?!\$\{)[^@\s]+@
    | -----BEGIN
""")


def agents() -> Iterator[Program]:
    return (each for each in PROGRAMS if each.parsed[0] == "leasehold node")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.where)
def test_a_program_takes_its_command_line(program: Program) -> None:
    name, _ = program.parsed
    assert name in {
        "leasehold node",
        "leasehold metrics",
        "leasehold db upgrade",
        "dagster instance migrate",
        "dagster-webserver",
        "steady_daemon",
    }


@pytest.mark.parametrize(
    "line",
    [
        "leasehold node --name a --leave-time 3",
        "leasehold node",
        "leasehold db upgrades",
        "leasehold metrics --port ninety",
        "dagster-webserver --prot 3000",
        "dagster instance migrates",
        "python -m dagster_leasehold.orchestration.supervision.steady_daemon no_such_module",
        "python -m dagster_leasehold.orchestration.supervision.steady_daemon --healthy 127.0.0.1:1",
    ],
)
def test_a_wrong_command_line_would_be_found(line: str) -> None:
    with pytest.raises(LineRefused):
        parsed(line.split())


@pytest.mark.parametrize("folder", ["systemd", "compose", "kubernetes"])
def test_every_part_of_a_deployment_is_started(folder: str) -> None:
    names = {each.parsed[0] for each in PROGRAMS if each.where.startswith(folder)}
    assert names == {
        "leasehold node",
        "leasehold metrics",
        "leasehold db upgrade",
        "dagster instance migrate",
        "dagster-webserver",
        "steady_daemon",
    }


def test_an_agent_is_given_more_time_than_it_takes() -> None:
    for agent in agents():
        _, options = agent.parsed
        assert agent.stop_s is not None
        assert agent.stop_s >= options["leave_timeout_s"] + AFTER_LIMIT_S, agent.where


def test_an_agent_is_reached_at_the_port_that_it_opens() -> None:
    for agent in agents():
        _, options = agent.parsed
        host, _, port = options["address"].rpartition(":")
        assert options["host"] == "0.0.0.0"
        assert int(port) == options["port"]
        assert host != options["host"]


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_no_secret_stands_in_a_file(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    assert [line for line in lines if PASSWORD.search(line.partition(" #")[0])] == []


@pytest.mark.parametrize(
    "line",
    [
        "LEASEHOLD_DATABASE_URL=mysql+pymysql://leasehold:abc@db/leasehold",
        "DAGSTER_MYSQL_PASSWORD=abc",
        'AWS_SECRET_ACCESS_KEY: "abc"',
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_a_secret_would_be_found(line: str) -> None:
    assert PASSWORD.search(line)


def test_dagster_is_told_what_production_needs() -> None:
    assert (HOME / "dagster/dagster.yaml").read_text("utf-8") == production_text()
    workspace = yaml.safe_load((HOME / "dagster/workspace.yaml").read_text("utf-8"))
    module = {"module_name": DEFINITIONS_MODULE, "location_name": LOCATION}
    assert workspace == {"load_from": [{"python_module": module}]}


def test_the_settings_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster_leasehold.orchestration.settings import load_settings

    monkeypatch.chdir(HOME)
    settings = load_settings(home=tmp_path)
    assert isinstance(settings, Settings)
    assert [stream.name for stream in settings.streams] == ["demo"]


def unexplained(text: str) -> list[str]:
    """Return the numbers and words to weigh that have no comment: beside them or just above."""
    lines = text.splitlines()
    missing: list[str] = []
    for number, line in enumerate(lines):
        if not WEIGHED.match(line):
            continue
        above = lines[max(0, number - COMMENT_ABOVE) : number]
        if " # " not in line and not any(each.lstrip().startswith("#") for each in above):
            missing.append(line.strip())
    return missing


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_what_nobody_could_guess_is_explained(file: Path) -> None:
    assert unexplained(file.read_text("utf-8")) == []


def test_a_number_without_a_reason_would_be_found() -> None:
    assert unexplained("[Service]\nMemoryMax=8G\n") == ["MemoryMax=8G"]
    assert unexplained("# All runs of it.\nMemoryMax=8G\n") == []
