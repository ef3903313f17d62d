"""The whole soak: two years in each shape of deployment.

    python -m tests.simulation.soak [--years 2] [--shape embedded] [--seed 0] [--json]

Prints a line for each virtual month and a table at the end; exits with 1 where something did not
hold. The shapes are independent of each other: a long soak can be made in parts.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from tests.simulation.soak.script import WHOLE, YEAR_S
from tests.simulation.soak.whole import Outcome, soak
from tests.simulation.soak.world import Pace, Shape


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(outcome: Outcome) -> list[str]:
    """The figures of a soak, one a line."""
    figures = {name: value for name, value in asdict(outcome).items() if name != "findings"}
    lines = [
        f"{name.replace('_', ' '):28} {value:,}" if isinstance(value, int) else
        f"{name.replace('_', ' '):28} {value}"
        for name, value in figures.items()
    ]  # fmt: skip
    return [*lines, f"{'findings':28} {len(outcome.findings)}"]


def main() -> int:
    """Read the arguments, soak, and say with the exit code whether everything held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--years", type=float, default=2.0)
    parser.add_argument("--shape", action="append", choices=[shape.value for shape in Shape])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    failed = False
    for shape in [Shape(name) for name in chosen.shape or [shape.value for shape in Shape]]:
        progress = (lambda _: None) if chosen.json else say
        days = chosen.years * YEAR_S / 86_400
        outcome = soak(shape, days, WHOLE, Pace(), seed=chosen.seed, say=progress)
        for line in [outcome.line()] if chosen.json else table(outcome):
            say(line)
        for finding in outcome.findings if not chosen.json else ():
            say(f"FINDING {finding}")
        failed = failed or bool(outcome.findings)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
