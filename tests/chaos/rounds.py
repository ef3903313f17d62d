"""A round: incidents at about the same time, then quiet until everything is read, then proof."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lease_store.errors import LeaseholdError
from tests.chaos.incidents import Incident
from tests.chaos.world import World

STRIKES_S = 300.0
RECOVERED_S = 300.0


@dataclass
class Tally:
    """What happened so far.

    Attributes:
        recovered_s: for each kind of incident, from the end of its round's last incident until
            everything that was written before was committed.
        violations: sentences, with the round that showed them.
    """

    recovered_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    missed: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    rounds: int = 0

    def table(self, records: int) -> str:
        """Incidents by kind, how soon all was read again, and what was checked."""
        width = max([len(kind) for kind in self.recovered_s], default=8)
        lines = [f"{'incident':{width}}  count  median s  max s"]
        for kind, seconds in sorted(self.recovered_s.items()):
            median = statistics.median(seconds)
            lines.append(f"{kind:{width}}  {len(seconds):5}  {median:8.1f}  {max(seconds):5.1f}")
        everything = [each for seconds in self.recovered_s.values() for each in seconds]
        lines += [
            f"{len(everything)} incidents in {self.rounds} rounds, {records} records checked, "
            f"{len(self.violations)} violations",
            *[f"not reached: {kind}" for kind in self.missed],
            *[f"VIOLATION {sentence}" for sentence in self.violations],
        ]
        return "\n".join(lines)


def play(
    world: World,
    tally: Tally,
    incidents: Sequence[Incident],
    say: Callable[[str], None] = print,
) -> None:
    """One round.

    Raises:
        AssertionError: the records written before its end were not committed in time.
    """
    tally.rounds += 1
    began = time.monotonic()
    kinds = " + ".join(incident.kind for incident in incidents)
    for incident in incidents:
        incident.strike(world)
    pending = list(incidents)
    deadline = time.monotonic() + STRIKES_S
    while pending and time.monotonic() < deadline:
        world.supervise()
        pending = [incident for incident in pending if not incident.over(world)]
        time.sleep(0.1)
    for path in world.failpoints.iterdir():
        path.unlink()
    tally.missed += [incident.kind for incident in pending]
    healed = time.monotonic()
    goal = world.writer.written()
    try:
        world.wait("the records of the round", lambda: not world.unread(goal), RECOVERED_S)
    except AssertionError as error:
        raise AssertionError(f"after {kinds}: {error}: {world.unread(goal)}") from None
    seconds = time.monotonic() - healed
    for incident in incidents:
        if incident not in pending:
            tally.recovered_s[incident.kind].append(seconds)
    try:
        found = world.proof.violations()
    except LeaseholdError as error:
        found = [f"the proof could not be made: {error}"]
    tally.violations += [f"after {kinds}: {sentence}" for sentence in found]
    say(
        f"{tally.rounds:3} {kinds}: {healed - began:.0f} s, recovered in {seconds:.1f} s, "
        f"{world.proof.records} records, {len(found)} violations"
    )


def finish(world: World, tally: Tally) -> None:
    """Stop writing, read all of it, and look at every record once more."""
    world.writer.stop()
    goal = world.writer.written()
    world.wait("the last record", lambda: not world.unread(goal), RECOVERED_S)
    tally.violations += world.proof.violations_at_the_end(goal)
