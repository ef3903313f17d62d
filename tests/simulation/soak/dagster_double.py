"""One Dagster deployment: its daemon, its code server with the real sensors, its runs and agents.

The instance is a real one on stand-ins for its storage, and runs of the day before are deleted, as
an operator's retention does. The daemon is a loop that calls the sensors and launches the runs that
they request; it keeps run keys forever. Code servers and agents are real objects of this process.
"""

from __future__ import annotations

import inspect
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus

from dagster_leasehold.assets.deployment import LEASEHOLD, Deployment
from dagster_leasehold.assets.partitions import NODE_TAG, PROCESS_TAG, STREAM_TAG
from dagster_leasehold.assets.places.local_place import local_place
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.windows.hourly_asset import HourlyAsset
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.lease_store.pruning import HISTORY_DAYS_DEFAULT
from dagster_leasehold.orchestration.supervision.code_server import CodeServer
from dagster_leasehold.orchestration.supervision.node_agent import NodeAgent
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint
from dagster_leasehold.sensors.active_runs import ActiveRuns
from dagster_leasehold.sensors.janitor import janitor_step
from dagster_leasehold.sensors.on_commit import on_commit_step
from dagster_leasehold.sensors.outbox import outbox_step
from dagster_leasehold.sensors.rebalance import rebalance_step
from dagster_leasehold.sensors.shard_list import shard_list_step
from dagster_leasehold.sensors.steps import Step, Tick
from dagster_leasehold.sensors.watermark import build_watermark_sensor
from tests.simulation.soak.dagster_storage import EventsInMemory, RunsInMemory
from tests.simulation.soak.run_double import RunDouble
from tests.simulation.soak.virtual_time import Killed, Process, Terminated, VirtualTime

if TYPE_CHECKING:
    from tests.simulation.soak.world import World

HISTORY_AGE = timedelta(days=HISTORY_DAYS_DEFAULT)
KEPT_RUNS_S = 86_400.0
PARTITION_TAG = "dagster/partition"
AT = Endpoint("127.0.0.1", 4202)
DEAD = "server|dead"
DEAD_ON_A_HOST = "host|dead"
"""The notes of processes that are gone: from one's own host, and from a node's, where only the
node's agent can see it."""


@dataclass
class Place:
    """A stream as a deployment serves it."""

    stream: ShardStream
    deployment: Deployment


class ServerDouble(CodeServer):
    """A node's code server, which answers while its host is up."""

    def __init__(self) -> None:
        self.sessions: list[ProcessIdentity] = []

    @property
    def silent_s(self) -> float:
        return 0.0

    def check(self) -> bool:
        return True

    def stop(self) -> None:
        """No process to end."""


class DagsterDouble:
    """A deployment.

    Args:
        name: for messages.
        nodes: the nodes of its setting, or those that have agents.
        agents: True if an agent beats for each node.
        hourly: the downstream asset that this deployment computes; None if another does.
    """

    def __init__(
        self,
        world: World,
        name: str,
        nodes: Sequence[str],
        *,
        agents: bool,
        streams: Sequence[ShardStream],
        hourly: HourlyAsset | None,
        folder: Path,
    ) -> None:
        self.world, self.name, self.folder = world, name, folder
        self.time: VirtualTime = world.time
        self.nodes = [NodeName(node) for node in nodes]
        self.agents, self.hourly = agents, hourly
        self.instance = dg.DagsterInstance.ephemeral()
        self._stand_in()
        self.instance._run_launcher = _Launcher(self)  # type: ignore[assignment]
        self.daemon_up = True
        self.cursors: dict[str, str | None] = {}
        self.messages: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.runs: dict[str, RunDouble] = {}
        self.launched = 0
        self._keys: set[tuple[str, str]] = set()
        self._ended: deque[tuple[float, str]] = deque()
        self._ids = itertools.count()
        connection = world.store.connect()
        # If agents beat, the setting names a node that no process has, as after an installation.
        serves = (NodeName("local"),) if agents else tuple(self.nodes)
        deployment = Deployment(
            lambda: connection,
            serves,
            Timing(),
            lambda _: local_place(world.output),
            agents=agents,
            history_age=HISTORY_AGE,
        )
        self.streams = {stream.name: Place(stream, deployment) for stream in streams}
        self.restart_code_server()
        self.live_agents: dict[NodeName, Process] = {}
        for node in self.nodes if agents else ():
            self.start_agent(node)

    def _stand_in(self) -> None:
        instance: Any = self.instance
        instance._run_storage = RunsInMemory(instance._run_storage)
        instance._event_storage = EventsInMemory(instance._event_storage)

    # -- code server ----------------------------------------------------------------------------

    def restart_code_server(self) -> None:
        """Build the sensors again: their memory is lost."""
        self.sensors: dict[str, Step | dg.SensorDefinition] = {}
        for place in self.streams.values():
            builders = [shard_list_step, rebalance_step, janitor_step, outbox_step]
            if place.stream.on_commit is not None:
                builders.append(on_commit_step)
            for builder in builders:
                step: Step = self._built(builder, place.stream, place.deployment)
                self.sensors[f"{place.stream.name}_{step.name}"] = step
            if self.hourly is not None and self.hourly.stream is place.stream:
                sensor = self._built(build_watermark_sensor, self.hourly)
                self.sensors[sensor.name] = sensor
        self.fresh = set(self.sensors)
        # One context for all ticks of a sensor: making one costs more than most ticks.
        self._contexts = {
            name: dg.build_sensor_context(
                instance=self.instance,
                sensor_name=name,
                resources={LEASEHOLD: next(iter(self.streams.values())).deployment},
            )
            for name, sensor in self.sensors.items()
            if isinstance(sensor, dg.SensorDefinition)
        }

    def _built(self, builder: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Build a sensor or an agent on virtual time, with the clock and chance that it takes."""
        given = {"clock": self.time.clock, "jitter": self.world.chance.random}
        wanted = inspect.signature(builder).parameters
        options |= {name: value for name, value in given.items() if name in wanted}
        return builder(*args, **options)

    # -- daemon ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Loop once: every sensor ticks, and the runs that it asks for are launched."""
        if not self.daemon_up:
            return
        for name, sensor in self.sensors.items():
            before = self.world.store.cost.copy()
            try:
                result = self._evaluate(name, sensor)
            except Exception as error:
                self.world.watch.tick_failed(self, name, error)
                continue
            spent = self.world.store.cost.since(before)
            self.world.watch.growth.tick_cost(self, name, spent)
            self._carry_out(name, result)

    def _evaluate(self, name: str, sensor: Step | dg.SensorDefinition) -> dg.SensorResult:
        cursor = self.cursors.get(name)
        if isinstance(sensor, Step):
            outcome = sensor.run(Tick(ActiveRuns(self.instance), cursor or ""))
            return dg.SensorResult(
                run_requests=list(outcome.run_requests),
                skip_reason=None if outcome.run_requests else outcome.line,
                cursor=cursor if outcome.cursor is None else outcome.cursor,
            )
        context: Any = self._contexts[name]
        context._cursor = cursor
        return cast("dg.SensorResult", sensor._raw_fn(context))

    def _carry_out(self, name: str, result: dg.SensorResult) -> None:
        self.cursors[name] = result.cursor
        skip = result.skip_reason
        self.messages[name] = str(getattr(skip, "skip_message", skip) or "")
        for request in result.run_requests or ():
            self.launch(name, request)

    # -- runs -----------------------------------------------------------------------------------

    def launch(self, sensor: str, request: dg.RunRequest) -> None:
        """Start a run, unless the sensor has used its key before."""
        if request.run_key is not None:
            if (sensor, request.run_key) in self._keys:
                return
            self._keys.add((sensor, request.run_key))
        tags = {str(key): str(value) for key, value in request.tags.items()}
        if request.partition_key is not None:
            tags[PARTITION_TAG] = request.partition_key
        if request.run_key is not None:
            tags["dagster/run_key"] = request.run_key
        run = DagsterRun(
            job_name=request.job_name or "__ASSET_JOB",
            run_id=f"{self.name}-{next(self._ids)}",
            run_config=dict(request.run_config),
            tags=tags | {"dagster/sensor_name": sensor},
            status=DagsterRunStatus.STARTED,
            asset_selection=frozenset(request.asset_selection or ()) or None,
        )
        self.instance.add_run(run)
        self.launched += 1
        node = tags.get(NODE_TAG)
        if self.agents and node and NodeName(node) not in self.live_agents:
            self.instance.report_run_failed(run, f"Node {node} has no code server now.")
            return
        process = Process(f"run {run.run_id}")
        hours = "" if self.hourly is None else self.hourly.stream.name
        double = RunDouble(self, run, tags.get(STREAM_TAG, hours), process)
        self.runs[run.run_id] = double
        self.time.spawn(process, double.work)

    def run_ended(self, double: RunDouble, failure: str) -> None:
        """Take note of a run that has ended; `failure` is empty where all went well."""
        self.runs.pop(double.run.run_id, None)
        self._ended.append((self.time.now_s, double.run.run_id))
        if failure:
            self.failures[double.stream] = failure

    def kill_run(self, run_id: str) -> None:
        """Kill a run's process, without a word of it."""
        double = self.runs.pop(run_id)
        self.instance.add_run_tags(run_id, {PROCESS_TAG: DEAD_ON_A_HOST if self.agents else DEAD})
        self._ended.append((self.time.now_s, run_id))
        self.time.end(double.process, Killed())

    def delete_old_runs(self) -> None:
        """Delete runs that ended more than a day ago, as an operator's retention does."""
        while self._ended and self._ended[0][0] < self.time.now_s - KEPT_RUNS_S:
            self.instance.delete_run(self._ended.popleft()[1])

    # -- agents ---------------------------------------------------------------------------------

    def start_agent(self, node: NodeName) -> None:
        """Start the agent of a node, and with it the node's code server."""
        folder = self.folder / node
        folder.mkdir(parents=True, exist_ok=True)
        process = Process(f"agent of {node}")
        store = self.world.store.connect(process)
        leave = self.time.threading().Event()
        rows = {
            place.stream.key: place.stream.node(node, address="") for place in self.streams.values()
        }
        agent = self._built(
            NodeAgent,
            node,
            rows,
            store=store,
            instance=self.instance,
            server=ServerDouble(),
            spark=None,
            folder=folder,
            advertised=AT,
            leave_timeout_s=60.0,
        )
        self.time.spawn(process, lambda: agent.run(leave))
        self.live_agents[node] = process

    def kill_host(self, node: NodeName) -> None:
        """Take a node's host down with its agent and its runs."""
        self.time.end(self.live_agents.pop(node), Killed())
        for run_id, double in list(self.runs.items()):
            if double.run.tags.get(NODE_TAG) == node:
                self.kill_run(run_id)

    def alive(self, node: NodeName) -> bool:
        """Return True if a process beats for a node now."""
        if node not in self.nodes:
            return False
        return node in self.live_agents if self.agents else self.daemon_up


class _Launcher:
    """Dagster's launcher, as far as the janitor asks it: ends a run where its process is there."""

    def __init__(self, deployment: DagsterDouble) -> None:
        self._deployment = deployment

    def terminate(self, run_id: str) -> bool:
        double = self._deployment.runs.get(run_id)
        if double is None:
            return False
        self._deployment.time.end(double.process, Terminated())
        return True

    def dispose(self) -> None:
        """Nothing to release."""
