"""Hosts as network namespaces: created, cut off from each other, and always removed.

A host's processes are started by `ip netns exec`, which gives them the host's `/etc/hosts` and
`/etc/resolv.conf`. The names of namespaces contain the process id of their creator, and the next
process removes those of dead ones.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import psutil

from tests.network.switch import Link

PREFIX = "lh"
ETC = Path("/etc/netns")
VARIABLE = "TEST_NETWORK"
CUT = Link(loss=1.0)
_SILENT = "10.99.0.254"
"""The address of a name server that does not answer."""


def ip(*arguments: str) -> str:
    """Run `ip`, and return its output."""
    done = subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


@cache
def reason_missing() -> str:
    """Return why namespaces cannot be made here; nothing if they can."""
    if shutil.which("ip") is None:
        return "the program `ip` is missing (Debian: iproute2)"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"/dev/net/tun cannot be opened: {error.strerror}"
    name = f"{PREFIX}-{os.getpid()}-probe"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except subprocess.CalledProcessError as error:
        return f"network namespaces may not be made here: {error.stderr.strip()}"
    return ""


@dataclass
class Network:
    """Hosts by name, which reach each other by name.

    Attributes:
        prefix: the prefix of its namespaces' names.
        addresses: the addresses of the hosts.
        control: the switch's socket.
        links: links with faults, by the hosts at their ends.
    """

    prefix: str
    addresses: dict[str, str]
    control: str
    links: dict[tuple[str, str], Link] = field(default_factory=dict)

    @classmethod
    def of_environment(cls) -> Network:
        """Return the network that this process was started in."""
        return cls(**json.loads(os.environ[VARIABLE]))

    def environment(self) -> dict[str, str]:
        """Return the variable that names the network for a process."""
        fields = asdict(self)
        del fields["links"]
        return {VARIABLE: json.dumps(fields)}

    def namespace(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def on(self, host: str, *command: str) -> list[str]:
        """Return a command that runs on a host."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def pids(self, host: str) -> list[int]:
        """Return the processes that run on a host."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace(host)).split()]

    def set_links(self, links: Mapping[tuple[str, str], Link]) -> None:
        """Change links, each in one direction; `Link()` fixes one."""
        self.links = {ends: link for ends, link in (self.links | links).items() if link != Link()}
        rows = [
            [self.addresses[source], self.addresses[target], link.delay_s, link.loss]
            for (source, target), link in self.links.items()
        ]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            # A path: the system's own names for sockets end at the borders of a namespace.
            answer = Path(f"{self.control}.{os.getpid()}")
            client.bind(str(answer))
            client.settimeout(10)
            client.sendto(json.dumps(rows).encode(), self.control)
            client.recv(16)  # the links are in force now
            answer.unlink()

    def names(self, host: str, *, hidden: Sequence[str] = (), silent: bool = False) -> None:
        """Have a host know the names of all hosts but the hidden ones.

        Args:
            host: it.
            hidden: the hosts whose names it does not find.
            silent: it asks a name server that does not answer, instead of none.
        """
        lines = ["127.0.0.1 localhost", f"127.0.0.1 {socket.gethostname()}"]
        lines += [
            f"{address} {name}" for name, address in self.addresses.items() if name not in hidden
        ]
        # Written in place: a process that was started has this very file, not its name.
        folder = ETC / self.namespace(host)
        (folder / "hosts").write_text("\n".join([*lines, ""]))
        (folder / "resolv.conf").write_text(f"nameserver {_SILENT}\n" if silent else "# none\n")


@contextmanager
def network(hosts: Sequence[str]) -> Generator[Network]:
    """Make hosts and the switch between them; afterwards nothing of them is left."""
    _remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-network-"))
    addresses = {host: f"10.99.0.{number}" for number, host in enumerate(hosts, 1)}
    made = Network(f"{PREFIX}-{os.getpid()}", addresses, str(folder / "switch"))
    switch: subprocess.Popen[bytes] | None = None
    try:
        for host in hosts:
            ip("netns", "add", made.namespace(host))
            (ETC / made.namespace(host)).mkdir(parents=True)
            made.names(host)
        served = json.dumps({made.namespace(host): at for host, at in addresses.items()})
        switch = subprocess.Popen(
            [sys.executable, "-m", "tests.network.switch", made.control, served],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert switch.stdout is not None
        assert switch.stdout.readline() == b"ready\n", "the switch did not start"
        yield made
    finally:
        _remove(made.prefix)
        if switch is not None:
            switch.kill()
            switch.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers() -> None:
    """Remove the leftovers of dead processes."""
    own = (line.split()[0] for line in ip("netns", "list").splitlines())
    for name in {name.rpartition("-")[0] for name in own if name.startswith(f"{PREFIX}-")}:
        maker = name.removeprefix(f"{PREFIX}-")
        if maker.isdecimal() and not psutil.pid_exists(int(maker)):
            _remove(name)


def _remove(prefix: str) -> None:
    """Kill the processes in the namespaces of a network, and delete these with their files."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        if not name.startswith(f"{prefix}-"):
            continue
        for pid in ip("netns", "pids", name).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        ip("netns", "delete", name)
    for folder in ETC.glob(f"{prefix}-*"):
        shutil.rmtree(folder)
