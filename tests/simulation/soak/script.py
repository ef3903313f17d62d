"""The script of a soak: every incident once a month over years, or once within two days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_leasehold.lease_store.identifiers import NodeName
from tests.simulation.soak.dagster_double import DagsterDouble
from tests.simulation.soak.world import Incident, World

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
WEEK_S, MONTH_S, YEAR_S = 7 * DAY_S, 30 * DAY_S, 365 * DAY_S
STREAM = "orders"
LATE_RECORDS = 7


@dataclass(frozen=True)
class Lengths:
    """Durations, in seconds.

    Attributes:
        spacing_s: from one incident to the next.
        week_s: for how long a source is away that is away for a week.
        day_s: for how long a daemon is down, or a group is paused, that is so for a day.
    """

    spacing_s: float
    week_s: float
    day_s: float


WHOLE = Lengths(3 * DAY_S, WEEK_S, DAY_S)
SMALL = Lengths(1.5 * HOUR_S, HOUR_S, 40 * MINUTE_S)

Builder = Callable[[float, Lengths, int], list[Incident]]
"""The steps of an incident that starts at a moment; the number counts its repetitions."""


def calendar(until_s: float, lengths: Lengths) -> list[Incident]:
    """Return all incidents up to a moment, one kind after the other and over again.

    A source is away for a week in the first round and in every sixth; otherwise for an hour.
    """
    incidents: list[Incident] = []
    at_s, number = lengths.spacing_s / 2, 0
    while at_s + lengths.spacing_s < until_s:
        builder = BUILDERS[number % len(BUILDERS)]
        steps = builder(at_s, lengths, number // len(BUILDERS))
        incidents += steps
        number += 1
        at_s = max(at_s, *(step.at_s for step in steps)) + lengths.spacing_s
    return [incident for incident in incidents if incident.at_s < until_s]


# -- the lease store, the source ------------------------------------------------------------------


def store_away(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """The lease store is unavailable for 31 to 300 s, four times within an hour."""

    def go_for(seconds: float) -> Callable[[World], None]:
        def go(world: World) -> None:
            world.store.down_until_s = world.time.now_s + seconds

        return go

    return [
        Incident(
            at_s + turn * HOUR_S / 4, f"the store is away for {seconds:.0f} s", go_for(seconds)
        )
        for turn, seconds in enumerate((31.0, 60.0, 120.0, 300.0))
    ]


def source_away(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """The source is unavailable for a week or an hour."""
    seconds = lengths.week_s if number % 6 == 0 else min(HOUR_S, lengths.week_s)

    def go(world: World) -> None:
        world.logs[STREAM].down = "The service of the log does not answer."

    def back(world: World) -> None:
        world.logs[STREAM].down = ""

    return [
        Incident(at_s, f"the source is away for {seconds / HOUR_S:.0f} h", go),
        Incident(at_s + seconds, "the source is back", back),
    ]


def reshard(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A shard is split in one round, and two are merged in the next."""

    def change(world: World) -> None:
        log = world.logs[STREAM]
        if number % 2:
            log.replace(log.open_shards()[-2:], 1)
        else:
            log.replace(log.open_shards()[:1], 2)

    return [Incident(at_s, "two shards are merged" if number % 2 else "a shard is split", change)]


def retention_overtakes(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A group is paused for a day, while retention removes unread records."""

    def pause(world: World) -> None:
        world.update_group(STREAM, paused=True)

    def trim(world: World) -> None:
        log = world.logs[STREAM]
        for shard in log.open_shards():
            log.append(shard, 5, world.now)
        log.trim(log.open_shards()[0])

    def resume(world: World) -> None:
        world.update_group(STREAM, paused=False)

    middle_s, end_s = at_s + lengths.day_s / 2, at_s + lengths.day_s
    return [
        Incident(at_s, "the group is paused", pause),
        Incident(middle_s, "retention overtakes it", trim),
        Incident(end_s, "the group is resumed", resume),
        Incident(end_s + lengths.day_s, "whoever looks accepts the loss", _accept_gaps),
    ]


def shard_removed(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """While a group is paused, a shard is split, and retention removes it with its records."""

    def pause(world: World) -> None:
        world.update_group(STREAM, paused=True)

    def remove(world: World) -> None:
        log = world.logs[STREAM]
        parent = log.open_shards()[0]
        log.append(parent, 5, world.now)
        for child in log.replace([parent], 1):
            log.append(child, 5, world.now)
        log.remove(parent)

    def resume(world: World) -> None:
        world.update_group(STREAM, paused=False)

    end_s = at_s + lengths.day_s
    return [
        Incident(at_s, "the group is paused", pause),
        Incident(at_s + lengths.day_s / 2, "retention removes a shard", remove),
        Incident(end_s, "the group is resumed", resume),
        Incident(end_s + lengths.day_s, "whoever looks accepts the loss", _accept_gaps),
    ]


def _accept_gaps(world: World) -> None:
    key = world.keys[STREAM]
    for gap in world.store.store.gaps(key):
        if not gap.acknowledged:
            world.store.store.acknowledge_gap(key, gap, observer="soak")


# -- processes ------------------------------------------------------------------------------------


def daemon_down(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A deployment's daemon is down for a day; its agents, where it has any, continue."""

    def down(world: World) -> None:
        world.deployments[number % len(world.deployments)].daemon_up = False

    def up(world: World) -> None:
        for deployment in world.deployments:
            deployment.daemon_up = True

    return [
        Incident(at_s, "a daemon is down", down),
        Incident(at_s + lengths.day_s, "the daemon is up", up),
    ]


def code_servers_restarted(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A new version is deployed: the memory of code servers is lost."""

    def restart(world: World) -> None:
        for deployment in world.deployments:
            deployment.restart_code_server()

    return [Incident(at_s, "code servers are restarted", restart)]


def host_killed(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """The host of a node with an agent is gone for ten minutes."""

    def with_agents(world: World) -> list[DagsterDouble]:
        return [deployment for deployment in world.deployments if deployment.agents]

    def kill(world: World) -> None:
        for deployment in with_agents(world):
            deployment.kill_host(NodeName(deployment.nodes[number % len(deployment.nodes)]))

    def start(world: World) -> None:
        for deployment in with_agents(world):
            for node in deployment.nodes:
                if node not in deployment.live_agents:
                    deployment.start_agent(node)

    return [
        Incident(at_s, "a host is killed", kill),
        Incident(at_s + 10 * MINUTE_S, "the host is back", start),
    ]


def run_killed(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A run's process dies while it is at work."""

    def work(world: World) -> None:
        _append(world)

    def kill(world: World) -> None:
        for deployment in world.deployments:
            for run_id, double in list(deployment.runs.items())[:1]:
                if double.stream == STREAM:
                    deployment.kill_run(run_id)

    return [
        Incident(at_s, "records come", work),
        Incident(at_s + 5.0, "a run is killed", kill),
        Incident(at_s + 10.0, "a run is killed", kill),
    ]


def waiting_run_asked(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A group is paused for half a minute while its runs wait for records, which come again."""

    def pause(world: World) -> None:
        world.update_group(STREAM, paused=True)

    def look(world: World) -> None:
        world.watch.look_for_open_shards(STREAM)

    def resume(world: World) -> None:
        world.update_group(STREAM, paused=False)
        _append(world)

    return [
        Incident(at_s, "records come", _append),
        Incident(at_s + 40.0, "records come to runs that wait", _append),
        Incident(at_s + 55.0, "the group is paused while they wait", pause),
        Incident(at_s + 65.0, "they have answered", look),
        Incident(at_s + 85.0, "the group is resumed", resume),
    ]


def run_hangs(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """A Spark job never returns; the node of its run keeps beating."""

    def hang(world: World) -> None:
        _append(world)
        world.moods(STREAM).hanging.add(world.logs[STREAM].open_shards()[0])

    return [Incident(at_s, "a run hangs", hang)]


def _append(world: World) -> None:
    log = world.logs[STREAM]
    for shard in log.open_shards():
        log.append(shard, 3, world.now)


# -- what follows consumption ---------------------------------------------------------------------


def hook_fails(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """The service behind `on_commit` is unavailable for an hour."""

    def fail(world: World) -> None:
        world.hook_fails = True
        _append(world)

    def fix(world: World) -> None:
        world.hook_fails = False

    return [Incident(at_s, "the hook fails", fail), Incident(at_s + HOUR_S, "it works", fix)]


def hours_fail(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """Every run of an hour fails for a while; one late record comes for such an hour, too."""
    seconds = lengths.day_s + 5 * HOUR_S

    def fail(world: World) -> None:
        world.moods(STREAM).failing_hours = lambda _: True

    def late(world: World) -> None:
        hour = world.watch.hours.next_hour
        log = world.logs[STREAM]
        log.append(log.open_shards()[0], 1, hour, late=True)

    def fix(world: World) -> None:
        world.moods(STREAM).failing_hours = lambda _: False

    return [
        Incident(at_s, "hours fail", fail),
        Incident(at_s + seconds / 2, "a late record comes for an hour that failed", late),
        Incident(at_s + seconds, "hours work", fix),
    ]


def late_records(at_s: float, lengths: Lengths, number: int) -> list[Incident]:
    """Records come for an hour that was made."""

    def late(world: World) -> None:
        world.append_late(STREAM, LATE_RECORDS)

    return [Incident(at_s, "late records come", late)]


BUILDERS: list[Builder] = [
    store_away,
    run_killed,
    waiting_run_asked,
    run_hangs,
    reshard,
    source_away,
    code_servers_restarted,
    hours_fail,
    hook_fails,
    daemon_down,
    retention_overtakes,
    shard_removed,
    host_killed,
    late_records,
]
