"""Ports of the loopback for the servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

_FIRST, _COUNT = 20_000, 12_000
"""Below those that Linux gives to connections, and to programs that ask for any port."""
_WORKERS = 16
_places = itertools.count(os.getpid())


def free_port() -> int:
    """Return a port that no process listens on and that is not returned twice.

    A port that the system picks can be picked again between its choice and its use. Here every test
    process has every sixteenth port, and returns none twice for a long time.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    while True:
        port = _FIRST + (next(_places) * _WORKERS + worker) % _COUNT
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
