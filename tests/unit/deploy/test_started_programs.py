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
    r"\w*(Sec|Max|NOFILE|Policy|Mode)=|Type=oneshot|Restart=|StateDirectory="
    r"|(stop_grace_period|mem_limit|(start_)?interval|timeout|retries|start_period|restart|ports"
    r"|test|replicas|minReadySeconds|maxUnavailable|terminationGracePeriodSeconds|resources"
    r"|startupProbe|livenessProbe|readinessProbe|backoffLimit|\w+Seconds|failureThreshold|storage"
    r"|emptyDir|limit|\w+_(seconds|workers|days|runs|retries|limit_s)|skipped|started|failure"
    r"|success):"
)
"""Keys whose values need a reason."""
INHERITED = 2
"""A comment above a key counts for the keys below it, so many levels deep."""
PASSWORD = re.compile(r"""(?ix)
    \w*(password|secret|token|credential)\w* \s* [:=] \s* ["']? (?!\s|$|\{|"|'|\$|\?|false$)\S
    | ://[^/\s:]+:(?!\$\{)[^@\s]+@
    | -----BEGIN
""")


def agents() -> Iterator[Program]:
    return (each for each in PROGRAMS if each.parsed[0] == "leasehold node")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.where)
def test_each_program_accepts_its_command_line(program: Program) -> None:
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
def test_the_check_finds_a_wrong_command_line(line: str) -> None:
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


def test_agents_get_more_time_to_stop_than_they_need() -> None:
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
def test_no_file_contains_a_secret(file: Path) -> None:
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
def test_the_check_finds_a_secret(line: str) -> None:
    assert PASSWORD.search(line)


def test_the_configuration_of_dagster_is_that_of_production() -> None:
    assert (HOME / "dagster/dagster.yaml").read_text("utf-8") == production_text()
    workspace = yaml.safe_load((HOME / "dagster/workspace.yaml").read_text("utf-8"))
    module = {"module_name": DEFINITIONS_MODULE, "location_name": LOCATION}
    assert workspace == {"load_from": [{"python_module": module}]}


def test_the_settings_of_the_files_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_leasehold.orchestration.declared_streams import DeclaredStreams
    from dagster_leasehold.orchestration.settings import load_settings

    monkeypatch.chdir(HOME)
    settings = load_settings(home=tmp_path)
    assert isinstance(settings, Settings)
    assert DeclaredStreams(settings).names == ("demo",)


def unexplained(text: str) -> list[str]:
    """Return the numbers and words to weigh that have no comment of their own."""
    lines = text.splitlines()
    weighed = (number for number, line in enumerate(lines) if WEIGHED.match(_key(line)))
    return [lines[number].strip() for number in weighed if not explained(lines, number)]


def explained(lines: list[str], number: int, levels: int = INHERITED) -> bool:
    """Return True if a line has a comment: in it, just above it, or just above its section.

    Values that follow each other can share one.
    """
    if " # " in lines[number]:
        return True
    depth, shared = _depth(lines[number]), True
    for above in reversed(range(number)):
        line = lines[above]
        if not line:
            return False
        if _depth(line) < depth:
            return levels > 0 and explained(lines, above, levels - 1)
        if shared and _depth(line) == depth:
            if line.lstrip().startswith("#"):
                return True
            shared = WEIGHED.match(_key(line)) is not None
    return False


def _key(line: str) -> str:
    return line.lstrip().removeprefix("- ")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_number_in_the_files_is_explained(file: Path) -> None:
    assert unexplained(file.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[Service]\nMemoryMax=8G", ["MemoryMax=8G"]),
        ("# All runs of it.\nMemoryMax=8G", []),
        ("# Of another.\n\nMemoryMax=8G", ["MemoryMax=8G"]),
        ("# Of another.\nType=exec\nMemoryMax=8G", ["MemoryMax=8G"]),
        ("# Both.\nRestart=always\nRestartSec=5s", []),
        ("a:\n  # Of b.\n  b: 1\n  replicas: 2", ["replicas: 2"]),
        ("# All of it.\nretention:\n  sensor:\n    skipped: 1", []),
        ("# All of it.\na:\n  b:\n    c:\n      skipped: 1", ["skipped: 1"]),
    ],
)
def test_the_check_finds_an_unexplained_number(text: str, missing: list[str]) -> None:
    assert unexplained(text) == missing
