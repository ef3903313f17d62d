"""A round: waves of incidents, then quiet until everything is read; proof after each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dagster_leasehold.lease_store.errors import LeaseholdError
from tests.chaos.incidents import Incident
from tests.chaos.stream import TIMEOUT_S
from tests.chaos.tally import Tally
from tests.chaos.world import World

PATIENCE_S = 90 * TIMEOUT_S
"""Far more than it takes: a machine that is slow enough to need a longer T is given longer."""


def play(
    world: World,
    tally: Tally,
    waves: Sequence[Sequence[Incident]],
    say: Callable[[str], None] = print,
) -> None:
    """Play a round: waves of incidents, each as soon as the one before it is over; then quiet.

    Raises:
        AssertionError: the records written before its end were not committed in time.
    """
    tally.rounds += 1
    began = time.monotonic()
    name = "; ".join(" + ".join(incident.kind for incident in wave) for wave in waves)
    happened: list[Incident] = []
    for wave in waves:
        missed = _strike(world, wave)
        tally.missed += [incident.kind for incident in missed]
        happened += [incident for incident in wave if incident not in missed]
        _prove(world, tally, name)
    healed = time.monotonic()
    goal = world.writer.written()
    try:
        world.wait("the records of the round", lambda: not world.unread(goal), PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"after {name}: {error}: {world.unread(goal)}") from None
    seconds = time.monotonic() - healed
    for incident in happened:
        tally.recovered_s[incident.kind].append(seconds)
    _prove(world, tally, name, finally_=True)
    say(
        f"{tally.rounds:3} {name}: {healed - began:.0f} s, recovered in {seconds:.1f} s, "
        f"{world.proof.records} records, {len(tally.violations)} violations"
    )


def _strike(world: World, wave: Sequence[Incident]) -> list[Incident]:
    """Begin all incidents of a wave and wait for their end; return those that never happened."""
    for incident in wave:
        incident.strike(world)
    pending = list(wave)
    deadline = time.monotonic() + PATIENCE_S
    while pending and time.monotonic() < deadline:
        world.supervise()
        pending = [incident for incident in pending if not incident.over(world)]
        time.sleep(0.1)
    for path in world.failpoints.iterdir():
        path.unlink()
    return pending


def _prove(world: World, tally: Tally, name: str, *, finally_: bool = False) -> None:
    """Record the current violations; a store that does not answer is no violation before
    the end.
    """
    try:
        sentences = world.proof.violations()
    except LeaseholdError as error:
        sentences = [f"the proof could not be made: {error}"] if finally_ else []
    tally.violations += [f"in {name}: {sentence}" for sentence in sentences]
    tally.records = world.proof.records


def finish(world: World, tally: Tally) -> None:
    """Stop writing, consume all records, and check every record once more."""
    world.writer.stop()
    goal = world.writer.written()
    world.wait("the last record", lambda: not world.unread(goal), PATIENCE_S)
    tally.violations += world.proof.violations_at_the_end(goal)
    tally.records = world.proof.records
