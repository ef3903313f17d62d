"""`leasehold simulate`: play a group of any size under virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from dagster_leasehold.lease_store.group_rows import TIMEOUT_DEFAULT_S, AssignmentMode
from dagster_leasehold.orchestration.commands.options import Json
from dagster_leasehold.orchestration.presentation import progress, say, show_json, show_table
from dagster_leasehold.simulation.configuration import Arrival, Event, Faults, SimulationConfig


def simulate(  # noqa: PLR0917
    nodes: Annotated[int, typer.Option(help="Number of nodes at the start.")] = 3,
    shards: Annotated[int, typer.Option(help="Number of shards at the start.")] = 8,
    mode: Annotated[
        AssignmentMode, typer.Option(help="How the group assigns shards.")
    ] = AssignmentMode.BALANCED,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Children of a split or merge wait for their parents.")
    ] = False,
    arrive: Annotated[Arrival, typer.Option(help="How the first nodes arrive.")] = Arrival.TOGETHER,
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:COUNT]@STEP",
            help="join, leave, crash, pause, split, merge, or an outage of the store for COUNT "
            "seconds, at a store call; may be repeated.",
        ),
    ] = None,
    faults: Annotated[
        Faults, typer.Option(help="Random faults in addition to the events, drawn for each seed.")
    ] = Faults.NONE,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The lease timeout.")
    ] = TIMEOUT_DEFAULT_S,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 1,
    steps: Annotated[
        int,
        typer.Option(
            help="Store calls per seed before all faults end and the group has to settle."
        ),
    ] = 2_000,
    as_json: Json = False,
) -> None:
    """Simulate a consumer group under virtual time, and check every promise at every step.

    It runs the code that a deployment runs, on simulated hosts, records and faults. The same
    options always give the same report.
    """
    config = SimulationConfig(
        nodes=nodes,
        shards=shards,
        mode=mode,
        ordered=ordered,
        arrive=arrive,
        events=tuple(Event.parse(text) for text in event or ()),
        faults=faults,
        timeout_s=timeout,
        seed=seed,
        seeds=seeds,
        steps=steps,
    )
    from dagster_leasehold.orchestration.simulated_consumption import consume
    from dagster_leasehold.simulation import Parts, SeedOutcome, run_simulation

    with progress("simulating", "seeds", seeds) as show:

        def ended(outcome: SeedOutcome) -> None:
            show(outcome.seed - seed + 1)

        report = run_simulation(config, Parts(consume), progress=ended)
    if as_json:
        show_json(report)
    else:
        _show(report)
    if report["violations"]:
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    takeover = report["takeover_s"]
    counts = report["counts"]
    first, number = report["seed"], report["seeds"]
    seeds = f"Seed {first}" if number == 1 else f"{number:,} seeds from {first} on"
    show_table(
        f"{seeds}: {report['steps']:,} store calls in {report['virtual_s']:,.0f} simulated seconds",
        "what, value",
        [
            ("planning rounds after the last change", report["rounds"]),
            ("changes of owner", report["moves"]),
            ("the fewest possible", report["moves_minimum"]),
            ("shards per node, largest first", _some(counts)),
            ("difference of largest and smallest", report["spread"]),
            ("take-over after a failure, median s", takeover["p50"]),
            ("take-over after a failure, 99 % s", takeover["p99"]),
            ("take-over after a failure, longest s", takeover["max"]),
        ],
    )
    show_table("Statements", "kind, >count", Counter[str](report["statements"]).most_common())
    for violation in report["violations"]:
        say(f"VIOLATION: {violation}")
    say(f"{len(report['violations']) or 'No'} violations.")


def _some(counts: list[int]) -> str:
    shown = ", ".join(str(count) for count in counts[:20])
    return f"{shown}, …" if len(counts) > 20 else shown
