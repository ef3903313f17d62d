"""The simulation before a release: many seeds on all cores, with progress and a table at the end.

    python -m tests.simulation.release [--seeds 20000] [--steps 5000] [--first-seed 0]

Exits with 1 if a seed broke a promise; each such seed is printed at once, with the call that
replays it. A long run can be divided, because seeds are independent of each other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from tests.simulation.protocol import Parts, run_seed
from tests.simulation.protocol.consumption import consume
from tests.simulation.test_protocol import config

CHUNK = 20
PROGRESS_S = 60.0


@dataclass(frozen=True)
class ChunkResult:
    """The outcome of some seeds, added up.

    Attributes:
        calls: store calls made.
        with_clients: seeds whose group had plain clients among its members.
        with_following: seeds whose runs followed their shards and waited for records.
        commits: batches committed.
        saves: checkpoints that clients saved.
        violations: sentences that begin with the seed.
    """

    seeds: int
    calls: int
    with_clients: int
    with_following: int
    commits: int
    saves: int
    violations: tuple[str, ...]

    def __add__(self, other: ChunkResult) -> ChunkResult:
        return ChunkResult(
            self.seeds + other.seeds,
            self.calls + other.calls,
            self.with_clients + other.with_clients,
            self.with_following + other.with_following,
            self.commits + other.commits,
            self.saves + other.saves,
            self.violations + other.violations,
        )


def run_chunk(seeds: range, steps: int) -> ChunkResult:
    """Simulate some seeds in a separate process."""
    total = ChunkResult(0, 0, 0, 0, 0, 0, ())
    for seed in seeds:
        outcome = run_seed(config(seed, steps), seed, Parts(consume))
        total += ChunkResult(
            1,
            outcome.calls,
            int(outcome.statements["save_checkpoint"] > 0),
            int(bool(outcome.waits)),
            outcome.statements["commit"],
            outcome.statements["save_checkpoint"],
            tuple(f"seed {seed}: {violation}" for violation in outcome.violations),
        )
    return total


def chunks(first: int, seeds: int) -> Iterator[range]:
    """The seeds in portions."""
    for start in range(first, first + seeds, CHUNK):
        yield range(start, min(start + CHUNK, first + seeds))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(first: int, seeds: int, steps: int, processes: int) -> ChunkResult:
    """Simulate all seeds; print the progress about once a minute, and a violation at once."""
    began = said_at = time.monotonic()
    total = ChunkResult(0, 0, 0, 0, 0, 0, ())
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        pending = [pool.submit(run_chunk, portion, steps) for portion in chunks(first, seeds)]
        for done in as_completed(pending):
            result = done.result()
            total += result
            for violation in result.violations:
                say(f"VIOLATION {violation}")
            if time.monotonic() - said_at >= PROGRESS_S:
                said_at = time.monotonic()
                say(
                    f"{total.seeds:,} of {seeds:,} seeds, {total.calls:,} store calls, "
                    f"{len(total.violations)} violations, {said_at - began:,.0f} s"
                )
    seconds = time.monotonic() - began
    say(f"seeds                    {first} to {first + seeds - 1} with {steps:,} steps each")
    say(f"store calls              {total.calls:,}")
    say(f"seeds with plain clients {total.with_clients:,}")
    say(f"seeds with waiting runs  {total.with_following:,}")
    say(f"commit calls             {total.commits:,}")
    say(f"checkpoints of clients   {total.saves:,}")
    say(f"violations               {len(total.violations)}")
    say(f"time                     {seconds:,.0f} s on {processes} processes")
    return total


def main() -> int:
    """Read the arguments, run, and say with the exit code whether every promise was kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    total = run(chosen.first_seed, chosen.seeds, chosen.steps, chosen.processes)
    if not total.violations:
        return 0
    seed = total.violations[0].split()[1].rstrip(":")
    say(
        "Replay one alone with: python -m tests.simulation.release "
        f"--first-seed {seed} --seeds 1 --steps {chosen.steps}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
