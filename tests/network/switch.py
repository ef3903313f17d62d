"""The cable between namespaces: a program that passes packets on, late, in part, or not at all.

Each namespace has one interface whose packets end here, so that no kernel module for delay or loss
is needed and nothing of the machine's own network is touched: when this program ends, the
interfaces are gone. Links are set through its socket, as JSON.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SET_INTERFACE, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000
_SOURCE, _TARGET, _PACKET_MAX = slice(12, 16), slice(16, 20), 65_536
INTERFACE, MTU = "lh0", 8_000


@dataclass(frozen=True)
class Link:
    """One direction of a connection between two hosts.

    Attributes:
        delay_s: how long each packet is on its way, in seconds.
        loss: the part of the packets that do not arrive; 1 is a partition.
    """

    delay_s: float = 0.0
    loss: float = 0.0


def interface_in(namespace: str, address: str) -> int:
    """Make the interface of a namespace, and return the file whose reads are its packets."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        _enter(there)
        packets = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        name = struct.pack("16sH", INTERFACE.encode(), _TUN | _NO_HEADER)
        fcntl.ioctl(packets, _SET_INTERFACE, name)
    finally:
        _enter(here)
        os.close(here)
        os.close(there)
    for command in (
        f"address add {address}/24 dev {INTERFACE}",
        "link set lo up",
        f"link set {INTERFACE} mtu {MTU} up",
    ):
        subprocess.run(["ip", "-n", namespace, *command.split()], check=True, timeout=10)
    return packets


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Switch:
    """Passes packets on between interfaces, by their IPv4 addresses."""

    def __init__(self, interfaces: dict[bytes, int]) -> None:
        self._interfaces = interfaces
        self._links: dict[tuple[bytes, bytes], Link] = {}
        self._late: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()

    def set_links(self, links: bytes) -> None:
        """Replace all links that are not perfect; each is `[from, to, delay_s, loss]`."""
        self._links = {
            (socket.inet_aton(source), socket.inet_aton(target)): Link(delay_s, loss)
            for source, target, delay_s, loss in json.loads(links)
        }

    def serve(self, control: socket.socket) -> None:
        """Work until standard input ends, which happens when the parent process ends."""
        ready = select.poll()
        for each in (sys.stdin.fileno(), control.fileno(), *self._interfaces.values()):
            ready.register(each, select.POLLIN)
        while True:
            wait_s = self._late[0][0] - time.monotonic() if self._late else 60.0
            for each, _ in ready.poll(max(0.0, wait_s) * 1_000):
                if each == sys.stdin.fileno():
                    return
                if each == control.fileno():
                    request, whom = control.recvfrom(_PACKET_MAX)
                    self.set_links(request)
                    control.sendto(b"done", whom)
                else:
                    self._take(os.read(each, _PACKET_MAX))
            while self._late and self._late[0][0] <= time.monotonic():
                self._give(*heapq.heappop(self._late)[2:])

    def _take(self, packet: bytes) -> None:
        target = self._interfaces.get(packet[_TARGET]) if packet[0] >> 4 == 4 else None
        if target is None:
            return
        link = self._links.get((packet[_SOURCE], packet[_TARGET]))
        if link is None:
            self._give(target, packet)
        elif random.random() >= link.loss:
            at = time.monotonic() + link.delay_s
            heapq.heappush(self._late, (at, next(self._order), target, packet))

    @staticmethod
    def _give(target: int, packet: bytes) -> None:
        try:
            os.write(target, packet)
        except OSError:
            return  # its queue is full, or its host is gone: a network may lose packets


def main(path: str, hosts: dict[str, str]) -> None:
    """Serve the namespaces, given with their addresses, until standard input ends."""
    interfaces = {
        socket.inet_aton(address): interface_in(namespace, address)
        for namespace, address in hosts.items()
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
        control.bind(path)
        print("ready", flush=True)  # noqa: T201
        Switch(interfaces).serve(control)
    Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
