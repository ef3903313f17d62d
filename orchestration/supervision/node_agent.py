"""The agent of a node: `leasehold node`. One a host, beside the runs and not part of them.

It keeps the host's code server running, which takes the node's runs, and Spark warm for them. It
beats for the node as long as it lives itself, and tells the group when its code server takes no
runs, so that the shards go elsewhere by transfer. Told to end, it lets the runs reach the end of
their batches, frees the shards, and only then stops what it started.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from dagster_leasehold.assets.deployment import instance_address
from dagster_leasehold.assets.partitions import NODE_TAG, PROCESS_TAG
from dagster_leasehold.assets.run_process import process_gone
from dagster_leasehold.lease_store.agent_membership import PLANNER_LOOK_S, AgentMembership
from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import (
    LeaseholdError,
    NodeNameTaken,
    StoreError,
    UserMistake,
    shown,
)
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.process_identity import ProcessIdentity, current_place
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.store import GroupsAndNodes
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.code_server import CodeServer, end_session
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, publish, withdraw
from dagster_leasehold.orchestration.supervision.spark_keeper import SparkKeeper
from dagster_leasehold.sensors.janitor import PROCESS_ENDED
from dagster_leasehold.sensors.tick_mark import tick_marks

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

STATE_FILE = "agent.json"
LOCK_FILE = "agent.lock"
LOOK_S = 1.0
KEEP_S = 0.5
RUNS_LOOK_S = 5.0
SILENT_MAX_S = 10.0
"""After how long without an answer of its code server a node gives its shards away, in seconds."""
RUNS_MAX = 200


@dataclass(frozen=True, slots=True)
class AgentState:
    """What an agent notes for its successor in the same place.

    A successor goes on under the incarnation, so that a restart moves no shard: the file lock says
    that the predecessor is dead, and what it left running is ended first.

    Attributes:
        place: the boot and pid namespace in which it may be used: elsewhere the runs of the
            predecessor could not be ended, and would go on beating for the incarnation.
        incarnation: under which the node answers to its name.
        sessions: its code servers.
    """

    place: str
    incarnation: str
    sessions: tuple[ProcessIdentity, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> AgentState | None:
        """What the last agent of the folder noted, if it was in this place and did not leave."""
        try:
            noted: Any = json.loads((folder / STATE_FILE).read_text())
            sessions = tuple(filter(None, map(ProcessIdentity.parse, noted["sessions"])))
            state = cls(str(noted["place"]), str(noted["incarnation"]), sessions)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return state if state.place and state.place == current_place() else None

    def write(self, folder: Path) -> None:
        """Note it, in one step."""
        sessions = [str(session) for session in self.sessions]
        noted = {"place": self.place, "incarnation": self.incarnation, "sessions": sessions}
        replace_file(folder / STATE_FILE, json.dumps(noted))


@contextmanager
def answering_alone(folder: Path, node: NodeName) -> Generator[None]:
    """Holds a node's folder for one agent at a time.

    Raises:
        NodeNameTaken: another agent is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise NodeNameTaken(
            f"Another `leasehold node` answers to node {shown(node)} in {folder}: stop it, or use "
            "another name."
        ) from None
    try:
        yield
    finally:
        lock.release()


class NodeAgent:
    """The agent of one node; `run` returns when it was told to end and has left.

    Args:
        node: its name.
        rows: what to register in each group, without incarnation and address.
        store: the lease store.
        instance: Dagster's.
        server: the node's code server.
        spark: keeps its Spark warm; None where somebody else does.
        folder: of its state.
        advertised: where Dagster's daemon reaches the code server.
        leave_timeout_s: how long its runs may take to reach the end of a batch, in seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        node: NodeName,
        rows: Mapping[GroupKey, Node],
        *,
        store: GroupsAndNodes,
        instance: DagsterInstance,
        server: CodeServer,
        spark: SparkKeeper | None,
        folder: Path,
        advertised: Endpoint,
        leave_timeout_s: float,
        clock: Clock = steady_clock,
    ) -> None:
        self._node = node
        self._rows = dict(rows)
        self._store = store
        self._instance = instance
        self._server = server
        self._spark = spark
        self._folder = folder
        self._advertised = advertised
        self._leave_timeout_s = leave_timeout_s
        self._clock = clock
        self._mark = folder / "leaving"
        self._memberships: list[AgentMembership] = []
        self._accepts_runs = True
        self._beats = threading.Thread(target=self._keep_all, name="beats", daemon=True)
        self._left = threading.Event()
        self._problem: LeaseholdError | None = None
        self._known_sessions: list[ProcessIdentity] = []
        self._published = False
        self._runs_seen_at = float("-inf")
        self._marks_seen_at = float("-inf")
        self._silent: set[GroupKey] = set()

    def run(self, told: threading.Event) -> None:
        """Work until `told` is set, then leave.

        Raises:
            NodeNameTaken, AssignmentConflict: the node may not be a member.
        """
        self._incarnation = self._succeed()
        try:
            while not told.wait(LOOK_S):
                self._look()
                if self._problem is not None:
                    raise self._problem
            self._leave()
        finally:
            self._left.set()
            if self._beats.is_alive():
                self._beats.join(self._leave_timeout_s)
            self._tolerantly(lambda: withdraw(self._instance, self._node))
            self._server.stop()
            if self._spark is not None:
                self._spark.stop()
            self._mark.unlink(missing_ok=True)
        (self._folder / STATE_FILE).unlink(missing_ok=True)

    def _succeed(self) -> str:
        """End what a killed predecessor left running; the incarnation to go on under."""
        self._mark.unlink(missing_ok=True)
        former = AgentState.read(self._folder)
        if former is None:
            return uuid.uuid4().hex
        for session in former.sessions:
            if ended := end_session(session):
                say(f"Ended {ended} processes that an agent before this one left running.")
        return former.incarnation

    def _look(self) -> None:
        healthy = self._server.look()
        if self._spark is not None:
            self._spark.look()
        if self._server.sessions != self._known_sessions:
            self._known_sessions = list(self._server.sessions)
            noted = tuple(self._known_sessions)
            AgentState(current_place(), self._incarnation, noted).write(self._folder)
        if healthy:
            self._begin()
        self._accepts_runs = healthy or self._server.silent_s < SILENT_MAX_S
        if self._clock() - self._marks_seen_at >= PLANNER_LOOK_S:
            self._marks_seen_at = self._clock()
            self._look_for_ticks()
        if self._clock() - self._runs_seen_at >= RUNS_LOOK_S:
            self._runs_seen_at = self._clock()
            self._tolerantly(self._fail_dead_runs)

    def _begin(self) -> None:
        """Once the code server answers, watch the node's name; be found and join once it is free.

        1. The note of the last incarnation was lost, and a run of that incarnation goes on beating.
        2. Were the node found now, it would be sent runs for that incarnation, each of which beats.
        3. So it is found only later: when those runs have ended, the old incarnation falls silent.
        """
        if not self._memberships:
            address = instance_address(self._instance)
            if not address:
                return  # Dagster's sensors make it at their first tick
            self._memberships = [
                AgentMembership(
                    self._store,
                    key,
                    replace(row, incarnation=self._incarnation, address=address),
                    self._clock,
                )
                for key, row in self._rows.items()
            ]
            self._beats.start()
        if not self._published and not any(each.contested for each in self._memberships):
            publish(self._instance, self._node, self._advertised)
            say(f"The code server of node {self._node} answers at {self._advertised}.")
            self._published = True

    def _look_for_ticks(self) -> None:
        """Read the marks of the rebalance sensors' ticks; say which sensor fell silent."""
        marks: dict[GroupKey, str] | None = None
        try:
            marks = tick_marks(self._instance, self._rows)
        except Exception as error:
            say(f"Dagster's storage did not answer: {type(error).__name__}: {error}")
        for membership in self._memberships:
            membership.see_planner(None if marks is None else marks[membership.key])
            silent_s = membership.planner_silent_s
            if silent_s and membership.key not in self._silent:
                say(
                    f"The rebalance sensor of {membership.key} has not ticked for {silent_s:.0f} s:"
                    f" node {self._node} gives its shards away until it does. See that Dagster's "
                    "daemon runs, and that the sensor is switched on."
                )
            change = self._silent.add if silent_s else self._silent.discard
            change(membership.key)

    # -- beats ----------------------------------------------------------------------------------

    def _keep_all(self) -> None:
        """Beat in every group, on a thread of its own: nothing else may delay a beat."""
        while not self._left.wait(KEEP_S):
            for membership in self._memberships:
                try:
                    if said := self._kept(membership):
                        say(f"Node {self._node} {said}.")
                except UserMistake as error:
                    self._problem = error
                    return
                except LeaseholdError as error:
                    say(f"A beat of node {self._node} got no answer: {error}")
                except Exception as error:
                    # An error of a driver's that nobody foresaw must not end the beating unseen.
                    say(f"A beat of node {self._node} failed: {type(error).__name__}: {error}")

    def _kept(self, membership: AgentMembership) -> str:
        # Whoever gives it shards has to find it: only what can be found joins.
        return membership.keep(accepts_runs=self._accepts_runs, joins=self._published)

    # -- runs -----------------------------------------------------------------------------------

    def _runs(self, *statuses: DagsterRunStatus) -> Sequence[DagsterRun]:
        """The node's runs of these statuses."""
        from dagster import RunsFilter

        filters = RunsFilter(statuses=list(statuses), tags={NODE_TAG: self._node})
        return self._instance.get_runs(filters=filters, limit=RUNS_MAX)

    def _fail_dead_runs(self) -> None:
        """Report the runs whose process is gone from this host, which no other host can see."""
        from dagster import DagsterRunStatus

        for run in self._runs(DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING):
            if process_gone(run.tags.get(PROCESS_TAG, "")):
                self._instance.report_run_failed(run, PROCESS_ENDED)
                say(f"Run {run.run_id} failed: its process is gone.")

    def _tolerantly(self, work: Callable[[], None]) -> None:
        """Do something with Dagster's storage, which may be away for a while."""
        try:
            work()
        except Exception as error:
            say(f"Dagster's storage did not answer: {type(error).__name__}: {error}")

    # -- leaving --------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Let all runs reach the end of their batches, then free the shards.

        1. No launcher finds the node any more, and its runs that still wait are canceled.
        2. The mark tells the runs at work to stop at their next checkpoint.
        3. Once no run has a shard open, all shards are freed in one transaction, so that the
           other nodes claim them at their next tick instead of after the timeout.
        """
        say(f"Node {self._node} is leaving: its runs stop at their next checkpoint.")
        self._accepts_runs = False
        self._mark.touch()
        self._tolerantly(self._cancel_waiting)
        deadline = self._clock() + self._leave_timeout_s
        while self._busy() and self._clock() < deadline:
            self._tolerantly(self._fail_dead_runs)
            self._left.wait(KEEP_S)
        self._left.set()
        if self._beats.is_alive():
            self._beats.join(self._leave_timeout_s)
        for membership in self._memberships:
            try:
                say(f"Node {self._node} {membership.leave()}.")
            except StoreError as error:
                say(f"The lease store did not let node {self._node} go: {error}")

    def _cancel_waiting(self) -> None:
        from dagster import DagsterRunStatus

        withdraw(self._instance, self._node)
        for run in self._runs(DagsterRunStatus.QUEUED):
            self._instance.report_run_canceled(
                run, message=f"Node {self._node} left before this run began."
            )

    def _busy(self) -> bool:
        """Whether a run of the node is still at work."""
        from dagster import DagsterRunStatus

        try:
            if any(membership.open_shards() for membership in self._memberships):
                return True
            return bool(
                self._runs(
                    DagsterRunStatus.STARTING,
                    DagsterRunStatus.STARTED,
                    DagsterRunStatus.CANCELING,
                )
            )
        except Exception:
            return True
