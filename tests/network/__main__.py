"""`make chaos-network`: makes the hosts, plays the campaign on one of them, and removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.chaos.__main__ import say
from tests.network.hosts import network, reason_missing
from tests.network.world import HOSTS, OPERATOR


def main() -> int:
    """Run the campaign, and return its exit code."""
    if reason := reason_missing():
        say(f"Cannot play: {reason}.")
        return 2
    # On a signal, it removes the hosts first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with network(HOSTS) as hosts:
        command = hosts.on(OPERATOR, sys.executable, "-m", "tests.network.campaign")
        return subprocess.run(
            command, env={**os.environ, **hosts.environment()}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
