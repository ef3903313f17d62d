"""`make chaos`: kills and freezes at seeded random, until as many of each have happened as asked.

LEASEHOLD_CHAOS_SEED, LEASEHOLD_CHAOS_KILLS, LEASEHOLD_CHAOS_FREEZES and LEASEHOLD_CHAOS_MINUTES
(no further round after so many) say what to play; LEASEHOLD_CHAOS_TIMEOUT_S is the lease timeout.
The choice of incidents follows the seed; when they meet which step does not.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.incidents import Incident, random_incident, random_trouble
from tests.chaos.rounds import Tally, finish, play
from tests.chaos.world import World, chaos_world, print_logs

PER_ROUND_MAX = 3


def setting(name: str, default: float) -> float:
    return float(os.environ.get(f"LEASEHOLD_CHAOS_{name}", default))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def campaign(world: World, tally: Tally) -> None:
    """Rounds of random incidents."""
    dice = random.Random(int(setting("SEED", 1)))
    left = {False: int(setting("KILLS", 100)), True: int(setting("FREEZES", 100))}
    until = time.monotonic() + setting("MINUTES", 600) * 60
    pairs: list[list[str]] = []
    play(world, tally, [], say)
    while any(left.values()) and time.monotonic() < until and not tally.violations:
        incidents: list[Incident] = []
        for _ in range(dice.randint(1, PER_ROUND_MAX)):
            freeze = dice.random() < left[True] / max(1, sum(left.values()))
            incident = random_incident(dice, freeze=freeze)
            if left[freeze] and incident.kind not in {each.kind for each in incidents}:
                left[freeze] -= 1
                incidents.append(incident)
        trouble = random_trouble(dice, pairs)
        play(world, tally, [*incidents, *([trouble] if trouble else [])], say)
    finish(world, tally)


def main() -> int:
    """1 when a promise was broken, or records did not arrive."""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-chaos-"))
    tally = Tally()
    failure = ""
    with chaos_world(folder / "home") as world:
        try:
            campaign(world, tally)
        except AssertionError as error:
            print_logs(world)
            failure = f"FAILED {error}"
        say(tally.table(world.proof.records))
        say(f"processes started again: {world.restarts}")
    if failure or tally.violations:
        say(f"{failure}\nThe files are left in {folder}.")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
