"""The check of Dagster in `leasehold doctor`: instance, daemon, run launcher and sensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store.errors import listed
from dagster_leasehold.orchestration.commands.findings import Finding, Health
from dagster_leasehold.orchestration.commands.target import Target
from dagster_leasehold.orchestration.settings import Settings

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from dagster_shared.error import SerializableErrorInfo

HOME_VARIABLE = "DAGSTER_HOME"
TOLERANCE_S = 300.0


def dagster(
    target: Target, now: Callable[[], float], environment: Mapping[str, str], *, with_nodes: bool
) -> Iterator[Finding]:
    """Yield findings on Dagster's instance, daemon, run launcher and our sensors.

    Args:
        with_nodes: True to check, in the lease store, whether nodes have agents.
    """
    from dagster_leasehold.orchestration.supervision.dagster_processes import opened_instance

    settings = target.settings
    home = _home(settings, environment)
    if home is None:
        text = (
            f"there is no dagster.yaml in {settings.dagster_home} or in {HOME_VARIABLE}: start "
            "`leasehold dev`, or set the variable to the home of your Dagster instance."
        )
        yield Finding("dagster", Health.WARNING, text)
        return
    with opened_instance(settings, home) as instance:
        yield Finding("dagster", Health.OK, f"the instance in {home}.")
        yield _daemon(instance, now())
        yield _launcher(instance, target, with_nodes=with_nodes)
        states = instance.all_instigator_state()
        off = sorted(each.instigator_name for each in states if each.status.value == "STOPPED")
        text = (
            f"switched off: {listed(off)}. Switch them on if needed."
            if off
            else "none is switched off."
        )
        yield Finding("sensors", Health.WARNING if off else Health.OK, text)
        yield from _ticks(instance, _our_instigators(target, states))


def _home(settings: Settings, environment: Mapping[str, str]) -> Path | None:
    """Return the home of Dagster's instance: Leasehold's own, or otherwise `DAGSTER_HOME`."""
    from dagster_leasehold.orchestration.instance import INSTANCE_FILE

    other = environment.get(HOME_VARIABLE)
    homes = [settings.dagster_home, *([Path(other).expanduser()] if other else [])]
    return next((home for home in homes if (home / INSTANCE_FILE).exists()), None)


def _daemon(instance: DagsterInstance, now_s: float) -> Finding:
    beats = instance.get_daemon_heartbeats()
    beat = beats.get("SENSOR")
    if beat is None:
        text = "it has never run the sensors of this instance: start it."
        return Finding("daemon", Health.FAILED, text)
    age_s = now_s - beat.timestamp
    if age_s > TOLERANCE_S:
        text = f"it has run no sensors for {age_s:.0f} s: start it, or read its log."
        return Finding("daemon", Health.FAILED, text)
    return Finding("daemon", Health.OK, f"it ran the sensors {max(0.0, age_s):.0f} s ago.")


def _launcher(instance: DagsterInstance, target: Target, *, with_nodes: bool) -> Finding:
    from dagster_leasehold.orchestration.supervision.node_launcher import NodeRunLauncher

    launcher = type(instance.run_launcher).__name__
    if isinstance(instance.run_launcher, NodeRunLauncher):
        return Finding("launcher", Health.OK, f"{launcher}.")
    agents = _nodes_with_agents(instance, target) if with_nodes else []
    if not agents and not target.settings.agents:
        reason = "no node has an agent"
        if not with_nodes:
            reason = "it matches the settings; nodes were not checked"
        return Finding("launcher", Health.OK, f"{launcher}; {reason}.")
    reason = "LEASEHOLD_AGENTS is true"
    if agents:
        reason = f"{listed(agents)} {'has an agent' if len(agents) == 1 else 'have agents'}"
    text = (
        f"{launcher} sends no runs to agents, although {reason}: set run_launcher in dagster.yaml "
        f"to {NodeRunLauncher.__module__}.{NodeRunLauncher.__name__}."
    )
    return Finding("launcher", Health.FAILED, text)


def _nodes_with_agents(instance: DagsterInstance, target: Target) -> list[str]:
    from dagster_leasehold.assets.deployment import instance_address
    from dagster_leasehold.orchestration.supervision.node_directory import find

    address = instance_address(instance)
    members = {
        node.name
        for group in target.store.groups()
        for node in target.store.pulse(group.key).nodes
        if node.member and node.address == address
    }
    return sorted(name for name in members if find(instance, name) is not None)


def _our_instigators(target: Target, states: Iterable[Any]) -> Iterator[Any]:
    """Yield the sensors and schedules of our streams that are not switched off."""
    from dagster_leasehold.assets.partitions import definition_name

    streams = [target.streams.find(name) for name in target.streams.names]
    prefixes = tuple(f"{definition_name(stream)}_" for stream in streams)
    for state in states:
        name = state.instigator_name
        # The sensor of an hourly asset has the asset's name and this suffix.
        ours = name.startswith(prefixes) or name.endswith("_watermark")
        if ours and state.status.value != "STOPPED":
            yield state


def _ticks(instance: DagsterInstance, states: Iterable[Any]) -> Iterator[Finding]:
    """Yield the error of each sensor whose last tick failed, grouped by error."""
    failing: defaultdict[str, list[str]] = defaultdict(list)
    for state in states:
        origin, selector = state.instigator_origin_id, state.selector_id
        # The newest tick can still be running.
        ticks = instance.get_ticks(origin, selector, limit=2)
        results = [tick for tick in ticks if tick.status.value != "STARTED"]
        if results and results[0].status.value == "FAILURE":
            failing[_first_line(results[0].error)].append(state.instigator_name)
    for line, names in failing.items():
        text = (
            f"the last tick of {listed(sorted(names))} failed ({line}): read the error in the "
            "Dagster UI, and fix its cause."
        )
        yield Finding("ticks", Health.WARNING, text)
    if not failing:
        yield Finding("ticks", Health.OK, "the last ticks of our sensors did not fail.")


def _first_line(error: SerializableErrorInfo | None) -> str:
    """Return the first line of an error, without Dagster's wrapper for errors of sensors."""
    if error is None:
        return "no error is stored"
    if error.cls_name == "SensorExecutionError" and error.cause is not None:
        error = error.cause
    line = next(iter(error.message.strip().splitlines()), "")
    return line.removeprefix("dagster._core.errors.").rstrip(".")
