"""Ports and missing logs of the commands that run Dagster's processes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.errors import InvalidSetting
from dagster_leasehold.orchestration.commands.dev import StreamCheck
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.orchestration.supervision.preflight import reserved_port
from tests import ports
from tests.declared import declare, stream_text


def test_a_port_in_use_is_refused_and_another_one_is_chosen() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with (
            pytest.raises(InvalidSetting, match=f"Port {taken} of 127.0.0.1 is in use"),
            reserved_port(taken),
        ):
            pass
        with reserved_port(None) as chosen:
            assert chosen != taken


def test_a_port_is_held_before_its_server_listens() -> None:
    """Goal: agents that start at the same moment on one host never choose the same port."""
    host, first = "127.0.0.1", ports.free_port()
    with reserved_port(None, first, host) as one, reserved_port(None, first, host) as other:
        assert first == one < other
        with (
            pytest.raises(InvalidSetting, match=f"Port {one} of 127.0.0.1 is in use"),
            reserved_port(one, first, host),
        ):
            pass
    with socket.socket() as listener:
        listener.bind((host, first))
        listener.listen()
        with reserved_port(None, first, host) as one:
            assert one > first
    with reserved_port(first, 1, host) as one:
        assert one == first


def test_only_a_local_log_can_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a deployment that reads from a service starts; its logs are not made by us."""
    options = {"bootstrap_servers": "127.0.0.1:1", "topic": "orders"}
    module = declare(tmp_path, stream_text("orders", "kafka", options=options), "visits")
    settings = Settings(home=tmp_path, module=module)
    StreamCheck.at(Target(settings)).say_missing_logs(settings.home)
    output = capsys.readouterr().out
    assert output.startswith("Stream visits has no log yet")
    assert output.count("\n") == 1
