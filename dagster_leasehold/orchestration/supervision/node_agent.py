"""The agent of a node, which the command `leasehold node` runs: one process per host.

It keeps the code server running, which starts the node's runs, and keeps Spark warm for them. It
sends the node's heartbeats and plans for the node. If the code server takes no runs, it marks the
node as not accepting runs, so that the shards are transferred to other nodes. When it is asked to
stop, it transfers the shards, lets the runs finish their batches, frees the remaining shards, and
stops its child processes last.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_leasehold.assets.deployment import instance_address
from dagster_leasehold.lease_store.errors import (
    LeaseholdError,
    StoreError,
    UnknownGroup,
    UserMistake,
)
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.member import PLANNER_LOOK_S, Member
from dagster_leasehold.lease_store.node_planning import NodePlanner
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.process_identity import ProcessIdentity, current_place
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.code_server import AgentState, CodeServer
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, publish, withdraw
from dagster_leasehold.orchestration.supervision.node_runs import NodeRuns
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper
from dagster_leasehold.sensors.run_cleaning import Burial
from dagster_leasehold.sensors.tick_mark import tick_marks

if TYPE_CHECKING:
    from dagster import DagsterInstance

LOOK_S = 1.0
ENDED_S = 0.1
"""The interval of checks for ended run processes, in seconds."""
KEEP_S = 0.5
RUNS_LOOK_S = 5.0
LOOKED, BEATEN, PLANNED = "looked at its code server", "tried to beat", "tried to plan"
TURN_MAX_S = 120.0
"""The longest duration of one iteration of the agent's loops, with a slow database, in seconds.

Each heartbeat of one group counts as an iteration, so the limit does not depend on the number of
groups.
"""
HAND_OVER_FRACTION = 0.5
"""The fraction of `leave_timeout_s` in which other nodes can take the shards by transfer."""
SILENT_MAX_S = 10.0
"""The time without an answer of its code server after which a node accepts no runs, in seconds."""


class NodeAgent:
    """The agent of one node; `run` returns when the node has left its groups.

    Args:
        node: the name of the node.
        rows: the row to register in each group, without incarnation and address.
        store: the lease store.
        instance: the Dagster instance.
        server: the node's code server.
        spark: keeps the node's Spark warm; None if another process does that.
        folder: the folder of the agent's state.
        advertised: the address where Dagster's daemon reaches the code server.
        leave_timeout_s: the longest time for the transfer of the shards and the end of the runs,
            in seconds.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        node: NodeName,
        rows: Mapping[GroupKey, Node],
        *,
        store: LeaseStore,
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
        self._runs = NodeRuns(instance, node)
        self._mark = folder / "leaving"
        self._members: list[Member] = []
        self._accepts_runs = True
        self._planners: list[NodePlanner] = []
        self._threads = (
            threading.Thread(target=self._keep_all, name="beats", daemon=True),
            threading.Thread(target=self._plan_all, name="plans", daemon=True),
        )
        self._left = threading.Event()
        self._problem: LeaseholdError | None = None
        self._sessions: list[ProcessIdentity] = []
        self._published = False
        self._runs_seen_at = float("-inf")
        self._marks_seen_at = float("-inf")
        self._silent: set[GroupKey] = set()
        self._turned_at: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set, then leave.

        Raises:
            NodeNameTaken, AssignmentConflict: the node cannot join a group.
        """
        self._incarnation = self._succeed()
        try:
            while not self._stopped_before_look(stop):
                self._look()
                if self._problem is not None:
                    raise self._problem
            self._leave()
        finally:
            self._stop_threads()
            self._tolerantly(lambda: withdraw(self._instance, self._node))
            self._server.stop()
            if self._spark is not None:
                self._spark.stop()
            self._mark.unlink(missing_ok=True)
        AgentState.forget(self._folder)

    def _stopped_before_look(self, stop: threading.Event) -> bool:
        """Wait until the next look is due, at once if a run's process has ended.

        Returns:
            True if `stop` was set meanwhile.
        """
        for _ in range(math.ceil(LOOK_S / ENDED_S)):
            if stop.wait(min(LOOK_S, ENDED_S)):
                return True
            if self._runs.ended:
                break
        return False

    def _stop_threads(self) -> None:
        self._left.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(self._leave_timeout_s)

    # -- health -----------------------------------------------------------------------------------

    def unhealthy(self) -> str:
        """Return why the agent needs a restart; empty if all its loops run.

        A database that does not answer is not a reason.
        """
        for loop, turned_at in self._turned_at.items():
            if (silent_s := self._clock() - turned_at) > TURN_MAX_S:
                return f"The agent of node {self._node} has not {loop} for {silent_s:.0f} s."
        return ""

    def not_ready(self) -> str:
        """Return why the node takes no shards; empty if it takes them."""
        if not self._published or not self._accepts_runs:
            return f"The code server of node {self._node} takes no runs."
        for member in self._members:
            if not member.trusted:
                return f"Node {self._node} has no recent beat in group {member.key}."
        return ""

    def _succeed(self) -> str:
        """Take over from a killed predecessor; return its incarnation, or a new one."""
        self._mark.unlink(missing_ok=True)
        predecessor = AgentState.read(self._folder)
        if predecessor is None:
            return uuid.uuid4().hex
        self._server.succeed(predecessor.sessions)
        return predecessor.incarnation

    def _look(self) -> None:
        self._turned_at[LOOKED] = self._clock()
        healthy = self._server.look()
        if self._spark is not None:
            self._spark.look()
        if self._server.sessions != self._sessions:
            self._sessions = list(self._server.sessions)
            sessions = tuple(self._sessions)
            AgentState(current_place(), self._incarnation, sessions).write(self._folder)
        if healthy:
            self._begin()
        self._accepts_runs = healthy or self._server.silent_s < SILENT_MAX_S
        if self._clock() - self._marks_seen_at >= PLANNER_LOOK_S:
            self._marks_seen_at = self._clock()
            self._look_for_ticks()
        if self._runs.ended or self._clock() - self._runs_seen_at >= RUNS_LOOK_S:
            self._runs_seen_at = self._clock()
            self._tolerantly(self._bury)

    def _begin(self) -> None:
        """Start heartbeats and plans, and publish the code server once the node's name is free.

        1. The note of the last incarnation was lost, and a run of that incarnation still sends
           heartbeats. So another live process holds the name.
        2. If the agent published the code server now, launchers would send it runs for the old
           incarnation. These runs would send its heartbeats as well, and it would never expire.
        3. The agent waits instead. Once the old runs have ended, the old incarnation expires.
        """
        if not self._members:
            address = instance_address(self._instance)
            if not address:
                return  # Dagster's sensors create it at their first tick
            self._members = [
                Member(
                    self._store,
                    key,
                    replace(row, incarnation=self._incarnation, address=address),
                    clock=self._clock,
                )
                for key, row in self._rows.items()
            ]
            self._planners = [
                NodePlanner(
                    self._store,
                    key,
                    self._node,
                    observer=f"agent of {self._node}",
                    clock=self._clock,
                )
                for key in self._rows
            ]
            for thread in self._threads:
                thread.start()
        if not self._published and not any(each.contested for each in self._members):
            publish(self._instance, self._node, self._advertised)
            say(f"The code server of node {self._node} answers at {self._advertised}.")
            self._published = True

    def _look_for_ticks(self) -> None:
        """Read the tick marks of the rebalance sensors, and report sensors that have stopped."""
        marks: dict[GroupKey, str] | None = None
        try:
            marks = tick_marks(self._instance, self._rows)
        except Exception as error:
            say(f"Dagster's storage did not answer: {type(error).__name__}: {error}")
        for member in self._members:
            member.see_planner(None if marks is None else marks[member.key])
            silent_s = member.planner_silent_s
            member.followed = bool(silent_s) and self._followed(member)
            if silent_s and member.key not in self._silent:
                say(
                    f"The rebalance sensor of {member.key} has not ticked for {silent_s:.0f} s:"
                    f" until it ticks, no run is launched for node {self._node}, and its shards "
                    "move to other nodes once no run has one open. Check that Dagster's daemon "
                    "runs and that the sensor is switched on."
                )
            change = self._silent.add if silent_s else self._silent.discard
            change(member.key)

    def _bury(self) -> None:
        """Fail the runs whose process is gone, and free their open shards."""
        for member in self._members if self._runs.fail_dead() else ():
            steps = FailingSteps(self._clock)
            burial = Burial(self._store, member.key, lambda: uuid.uuid4().hex, steps)
            snapshot = partial(self._store.snapshot, member.key)
            freed = burial.free(self._instance, member.progress(), (), snapshot)
            for line in (*freed, *steps.notes):
                say(f"Group {member.key}: {line}.")

    def _followed(self, member: Member) -> bool:
        """Return True if runs have shards of the node open; the last answer if this is unknown."""
        try:
            return bool(member.open_shards())
        except StoreError:
            return member.followed

    # -- beats ----------------------------------------------------------------------------------

    def _keep_all(self) -> None:
        """Send the heartbeats of all groups, on a thread that no other work delays."""
        while not self._left.wait(KEEP_S):
            for member in self._members:
                if self._left.is_set():
                    return
                # Set for each group: if the store does not answer, a round of many groups takes
                # minutes.
                self._turned_at[BEATEN] = self._clock()
                try:
                    if change := self._beat(member):
                        say(f"Node {self._node} {change}.")
                except UserMistake as error:
                    self._problem = error
                    return
                except LeaseholdError as error:
                    say(f"A heartbeat of node {self._node} got no answer: {error}")
                except Exception as error:
                    # An unexpected error of a driver must not end this thread.
                    say(f"A heartbeat of node {self._node} failed: {type(error).__name__}: {error}")

    def _plan_all(self) -> None:
        """Plan for the node in all groups, on a thread that delays no heartbeat."""
        while not self._left.wait(KEEP_S):
            for member, planner in zip(self._members, self._planners, strict=True):
                if self._left.is_set():
                    return
                self._turned_at[PLANNED] = self._clock()
                try:
                    report = planner.plan() if member.joined else None
                except LeaseholdError as error:
                    say(f"Node {self._node} could not plan in group {member.key}: {error}")
                except Exception as error:
                    say(f"The plan of node {self._node} failed: {type(error).__name__}: {error}")
                else:
                    for decision in report.decisions if report else ():
                        say(f"Group {member.key}: {decision}.")

    def _beat(self, member: Member) -> str:
        # Only a published node joins, because launchers cannot find any other node.
        return member.keep_alive(accepts_runs=self._accepts_runs, joins=self._published)

    def _tolerantly(self, work: Callable[[], None]) -> None:
        """Do work on Dagster's storage or the lease store, and only report an error."""
        try:
            work()
        except StoreError as error:
            say(f"The lease store did not answer: {error}")
        except Exception as error:
            say(f"Dagster's storage did not answer: {type(error).__name__}: {error}")

    # -- leaving --------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Transfer the shards, let all runs finish their batches, and free the remaining shards.

        1. Launchers no longer find the node, and its queued runs are canceled.
        2. The node is marked as not accepting runs. While other nodes accept runs, its own runs
           continue, and each shard has an owner until its transfer is complete.
        3. The file `leaving` makes the remaining runs stop at their next checkpoint.
        4. Once no run has a shard open, the remaining shards are freed in one transaction, so that
           other nodes claim them at their next tick instead of after the timeout.
        """
        say(f"Node {self._node} is leaving: its shards go to other nodes.")
        self._accepts_runs = False
        self._tolerantly(self._cancel_waiting)
        deadline = self._clock() + self._leave_timeout_s
        self._hand_over(self._clock() + self._leave_timeout_s * HAND_OVER_FRACTION)
        self._mark.touch()
        while self._busy() and self._clock() < deadline:
            self._turned_at[LOOKED] = self._clock()
            self._tolerantly(self._bury)
            self._left.wait(KEEP_S)
        self._stop_threads()
        for member in self._members:
            # The other loops have ended, so this one stands for all of them in `unhealthy`.
            self._turned_at = dict.fromkeys(self._turned_at, self._clock())
            try:
                say(f"Node {self._node} {_departure(member)}.")
            except StoreError as error:
                say(f"Node {self._node} could not leave group {member.key}: {error}")

    def _hand_over(self, deadline: float) -> None:
        """Wait until no other node will take a shard of this one, or until the deadline."""
        while self._clock() < deadline and self._hands_over():
            self._turned_at[LOOKED] = self._clock()
            self._tolerantly(self._bury)
            self._look_for_ticks()
            self._left.wait(LOOK_S)

    def _hands_over(self) -> bool:
        try:
            return any(member.hands_over() for member in self._members)
        except StoreError as error:
            say(f"The owners of the shards of node {self._node} are unknown: {error}")
            return True

    def _cancel_waiting(self) -> None:
        withdraw(self._instance, self._node)
        self._runs.cancel_waiting()

    def _busy(self) -> bool:
        """Return True if a run of the node is active, or if this is unknown."""
        try:
            if any(member.open_shards() for member in self._members):
                return True
            return self._runs.at_work()
        except Exception:
            return True


def _departure(member: Member) -> str:
    """Leave a group, and return the predicate of a message about it."""
    try:
        outcome = member.leave()
    except UnknownGroup:
        return f"found no group {member.key} to leave"
    freed = len(outcome.shards) if isinstance(outcome, Changed) else 0
    return f"left group {member.key} and freed {freed} shard{'' if freed == 1 else 's'}"
