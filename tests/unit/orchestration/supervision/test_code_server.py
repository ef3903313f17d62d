"""The note of a code server for the successor of its agent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.orchestration.supervision.code_server import (
    STATE_FILE,
    AgentState,
    CodeServer,
    digest_of,
)
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint

ENVIRONMENT = {"LEASEHOLD_DATABASE_URL": "mysql://user:word@host/leases", "PWD": "/"}


@pytest.fixture
def state(tmp_path: Path) -> AgentState:
    server = CodeServer(
        "definitions", Endpoint("127.0.0.1", 4201), tmp_path, ENVIRONMENT, steady_clock
    )
    noted = replace(server.state("first"), sessions=(ProcessIdentity("here", 7, 8),))
    noted.write(tmp_path)
    return noted


def test_a_note_is_read_as_it_was_written_and_shows_no_secret(
    state: AgentState, tmp_path: Path
) -> None:
    file = tmp_path / STATE_FILE
    assert AgentState.read(tmp_path) == state
    assert state.command[-1] != ""
    assert "word" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_note_of_an_earlier_release_has_sessions_and_another_environment(
    state: AgentState, tmp_path: Path
) -> None:
    file = tmp_path / STATE_FILE
    fields = json.loads(file.read_text())
    file.write_text(
        json.dumps({name: fields[name] for name in ("place", "incarnation", "sessions")})
    )
    assert AgentState.read(tmp_path) == replace(state, command=(), environment="")


def test_a_digest_depends_on_all_variables_except_those_of_one_start() -> None:
    digest = digest_of(ENVIRONMENT)
    assert digest == digest_of({**ENVIRONMENT, "PWD": "/tmp", "INVOCATION_ID": "1"})
    assert digest != digest_of({**ENVIRONMENT, "LEASEHOLD_OUTPUT": "s3://elsewhere"})
    assert digest != digest_of({})
