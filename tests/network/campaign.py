"""A campaign of partitions, as a program that runs on a host of the network.

LEASEHOLD_CHAOS_SEED and LEASEHOLD_CHAOS_PARTITIONS are its options, and LEASEHOLD_CHAOS_KINDS is an
expression that matches the names of kinds. With one partition of each kind, they happen one at a
time. With more, several of one kind happen together, so that each kind's times are separate.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.__main__ import say, setting
from tests.chaos.rounds import finish, play
from tests.chaos.tally import Tally
from tests.chaos.world import print_logs
from tests.network.hosts import Network
from tests.network.partitions import kinds, wave
from tests.network.world import NetworkWorld, network_world


def campaign(world: NetworkWorld, tally: Tally, partitions: int) -> None:
    """Play rounds of one kind each, until so many partitions have happened."""
    dice = random.Random(int(setting("SEED", 1)))
    expression = os.environ.get("LEASEHOLD_CHAOS_KINDS", "")
    chosen = [kind for kind in kinds() if re.search(expression, kind)]
    waiting: list[str] = []
    until = time.monotonic() + setting("MINUTES", 600) * 60
    while (left := partitions - tally.incidents) > 0 and not tally.violations:
        if time.monotonic() > until:
            break
        waiting = waiting or dice.sample(chosen, len(chosen))
        most = left if partitions > len(chosen) else 1
        play(world, tally, [wave(dice, waiting.pop(), most)], say)
    finish(world, tally)


def main() -> int:
    """Play; return 1 if a promise was broken, or records did not arrive."""
    tally, failure = Tally(), ""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-network-"))
    with network_world(folder / "home", Network.of_environment()) as world:
        try:
            campaign(world, tally, int(setting("PARTITIONS", 100)))
        except AssertionError as error:
            print_logs(world)
            failure = f"FAILED {error}"
        say(f"processes started again: {world.restarts}")
    say(tally.table())
    if failure or tally.violations:
        say(f"{failure}\nThe files are left in {folder}.")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
