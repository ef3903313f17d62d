"""`make chaos`: kills and freezes at seeded random, until the requested number of each.

LEASEHOLD_CHAOS_SEED, LEASEHOLD_CHAOS_KILLS, LEASEHOLD_CHAOS_FREEZES and LEASEHOLD_CHAOS_MINUTES (no
round starts after that time) are the options; LEASEHOLD_CHAOS_TIMEOUT_S is the lease timeout. The
seed decides the incidents, but not the steps that they interrupt. With LEASEHOLD_CHAOS_RESULTS,
results are added to a file, and the next call continues from there.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.incidents import Incident, compatible, random_incident, random_trouble
from tests.chaos.rounds import finish, play
from tests.chaos.tally import Tally
from tests.chaos.world import World, chaos_world, print_logs

WAVES_MAX, PER_WAVE_MAX = 4, 8


def setting(name: str, default: float) -> float:
    return float(os.environ.get(f"LEASEHOLD_CHAOS_{name}", default))


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def left_to_play(*tallies: Tally) -> dict[bool, int]:
    """Count the kills (False) and freezes (True) that have not happened yet."""
    return {
        freeze: max(0, int(setting(name, 100)) - sum(tally.count(verb) for tally in tallies))
        for freeze, name, verb in ((False, "KILLS", "kill"), (True, "FREEZES", "freeze"))
    }


def campaign(world: World, tally: Tally, before: Tally) -> None:
    """Play rounds of random incidents, after those that were played before."""
    dice = random.Random(f"{int(setting('SEED', 1))} after {before.rounds}")
    until = time.monotonic() + setting("MINUTES", 600) * 60
    pairs: list[list[str]] = []
    while time.monotonic() < until and not tally.violations:
        left = left_to_play(before, tally)
        if not any(left.values()):
            break
        count = dice.randint(2, WAVES_MAX)
        play(world, tally, [random_wave(dice, left, pairs) for _ in range(count)], say)
    finish(world, tally)


def random_wave(
    dice: random.Random, left: dict[bool, int], pairs: list[list[str]]
) -> list[Incident]:
    """Draw kills and freezes, at most one of them of the database, and perhaps other trouble."""
    wave: list[Incident] = []
    for _ in range(dice.randint(2, PER_WAVE_MAX)):
        freeze = dice.random() < left[True] / max(1, sum(left.values()))
        incident = random_incident(dice, freeze=freeze)
        if left[freeze] and compatible(incident, wave):
            left[freeze] -= 1
            wave.append(incident)
    trouble = random_trouble(dice, pairs)
    if trouble and compatible(trouble, wave):
        wave.append(trouble)
    return wave


def main() -> int:
    """Play; return 1 if a promise was broken, or records did not arrive."""
    results = os.environ.get("LEASEHOLD_CHAOS_RESULTS")
    before = Tally.read(Path(results)) if results else Tally()
    tally = Tally()
    failure = ""
    folder = Path(tempfile.mkdtemp(prefix="leasehold-chaos-"))
    if any(left_to_play(before).values()):
        with chaos_world(folder / "home") as world:
            try:
                campaign(world, tally, before)
            except AssertionError as error:
                print_logs(world)
                failure = f"FAILED {error}"
            finally:
                if results:
                    tally.write(Path(results))
            say(f"processes started again: {world.restarts}")
    before.add(tally)
    say(before.table())
    if failure or before.violations:
        say(f"{failure}\nThe files are left in {folder}.")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
