"""Hosts that are namespaces, and the links between them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.network.hosts import CUT, ETC, Network, ip, network, reason_missing
from tests.network.switch import Link

ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 7000))
print("ready", flush=True)
while True:
    server.sendto(*server.recvfrom(100))
"""
ASK = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.settimeout(float(sys.argv[1]))
    began = time.monotonic()
    try:
        client.sendto(b"?", ("b", 7000))
        client.recv(100)
        print(time.monotonic() - began)
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.fixture
def hosts() -> Iterator[Network]:
    if reason := reason_missing():
        pytest.skip(reason)
    with network(["a", "b"]) as made:
        command = made.on("b", sys.executable, "-c", ECHO)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            assert echo.stdout.readline() == b"ready\n"
            yield made
            echo.kill()
    assert f"{made.prefix}-" not in ip("netns", "list")
    assert list(ETC.glob(f"{made.prefix}-*")) == []


def asked(network: Network, patience_s: float = 10.0) -> str:
    command = network.on("a", sys.executable, "-c", ASK, str(patience_s))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_links_and_names_are_cut_and_restored(hosts: Network) -> None:
    assert float(asked(hosts)) < 5
    hosts.set_links({("b", "a"): CUT})
    assert asked(hosts, 0.3) == "TimeoutError"
    hosts.set_links({("b", "a"): Link(), ("a", "b"): Link(delay_s=0.4)})
    assert float(asked(hosts)) >= 0.4
    hosts.set_links({("a", "b"): Link()})
    hosts.names("a", hidden=["b"])
    assert asked(hosts) == "gaierror"
    hosts.names("a")
    assert float(asked(hosts)) < 5
