"""The agent of a node: the process of `leasehold node`, one per host.

It keeps the code server running, which starts the node's runs, and keeps Spark warm for them. It
sends the node's heartbeats and plans for the node. While the code server takes no runs, or Spark is
starting after a kill and all other nodes take runs, the node is marked as not accepting runs, so
that its shards are transferred to other nodes. To stop, the agent transfers the shards, waits until
the runs finish their batches, frees the remaining shards, and stops its child processes last.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
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
from dagster_leasehold.lease_store.member import PLANNER_READ_S, Member
from dagster_leasehold.lease_store.node_planning import NodePlanner
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.orchestration.presentation import say
from dagster_leasehold.orchestration.supervision.code_server import AgentState, CodeServer
from dagster_leasehold.orchestration.supervision.node_directory import Endpoint, publish, withdraw
from dagster_leasehold.orchestration.supervision.node_runs import NodeRuns
from dagster_leasehold.orchestration.supervision.spark_warm_up import SparkKeeper
from dagster_leasehold.sensors.run_cleaning import DeadRunCleanup
from dagster_leasehold.sensors.tick_mark import tick_marks

if TYPE_CHECKING:
    from dagster import DagsterInstance

CHECK_S = 1.0
ENDED_S = 0.1
"""The interval of checks for ended run processes, in seconds."""
LOOP_S = 0.5
RUNS_CHECK_S = 5.0
CHECK_LOOP, BEAT_LOOP, PLAN_LOOP = (
    "checked its code server",
    "tried to send a heartbeat",
    "tried to plan",
)
"""The loops of the agent, as predicates of the message about a loop that hangs."""
ITERATION_MAX_S = 120.0
"""The longest duration of an iteration of the agent's loops, with a slow database, in seconds.

Each group counts as an iteration, so the limit does not depend on the number of groups.
"""
TRANSFER_FRACTION = 0.5
"""The fraction of `leave_timeout_s` for transfers to other nodes."""
SILENT_MAX_S = 10.0
"""A node accepts no runs once its code server has not answered for this time, in seconds."""


class NodeAgent:
    """The agent of one node; `run` returns after the node has left its groups.

    Args:
        rows: the row to register in each group, without incarnation and address.
        spark: keeps the node's Spark warm; None if another process does.
        advertised: the address of the code server for Dagster's daemon.
        leave_timeout_s: the longest time to transfer the shards and end the runs, in seconds.
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
            threading.Thread(target=self._beat_all, name="beats", daemon=True),
            threading.Thread(target=self._plan_all, name="plans", daemon=True),
        )
        self._left = threading.Event()
        self._problem: LeaseholdError | None = None
        self._sessions: list[ProcessIdentity] = []
        self._published = False
        self._restarted = False
        self._runs_seen_at = float("-inf")
        self._marks_seen_at = float("-inf")
        self._silent: set[GroupKey] = set()
        self._iteration_at: dict[str, float] = {}

    def run(
        self, stop: threading.Event, pages: AbstractContextManager[object] | None = None
    ) -> None:
        """Work and serve `pages` until `stop` is set, then leave.

        Raises:
            NodeNameTaken, AssignmentConflict: the node cannot join a group.
        """
        self._incarnation = self._take_over_predecessor()
        with ExitStack() as stack:
            try:
                # Started before the pages: this process can fork only while it has one thread.
                self._server.check()
                self._write_note()
                stack.enter_context(pages or nullcontext())
                while not self._stopped_before_check(stop):
                    self._check()
                    if self._problem is not None:
                        raise self._problem
                self._leave()
            finally:
                self._stop()
        AgentState.remove(self._folder)

    def _stopped_before_check(self, stop: threading.Event) -> bool:
        """Wait until the next check is due or a run's process has ended; return True if stopped."""
        for _ in range(math.ceil(CHECK_S / ENDED_S)):
            if stop.wait(min(CHECK_S, ENDED_S)):
                return True
            if self._runs.ended:
                break
        return False

    def _stop(self) -> None:
        """Stop the threads, the code server with its runs, and Spark."""
        self._stop_threads()
        self._attempt(lambda: withdraw(self._instance, self._node))
        self._server.stop()
        if self._spark is not None:
            self._spark.stop()
        self._mark.unlink(missing_ok=True)

    def _stop_threads(self) -> None:
        self._left.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(self._leave_timeout_s)

    # -- health -----------------------------------------------------------------------------------

    def unhealthy(self) -> str:
        """Return why the agent needs a restart; empty if all its loops run.

        A database that does not answer is no reason for a restart.
        """
        for loop, turned_at in self._iteration_at.items():
            if (silent_s := self._clock() - turned_at) > ITERATION_MAX_S:
                return f"The agent of node {self._node} has not {loop} for {silent_s:.0f} s."
        return ""

    def not_ready(self) -> str:
        """Return why the node takes no shards; empty if it takes them."""
        if not self._published or not self._accepts_runs:
            return f"The code server of node {self._node} takes no runs."
        for member in self._members:
            if not member.trusted:
                return f"Node {self._node} has no recent heartbeat in group {member.key}."
        return ""

    def _take_over_predecessor(self) -> str:
        """Take over from a killed predecessor; return its incarnation, or a new one."""
        self._mark.unlink(missing_ok=True)
        predecessor = AgentState.read(self._folder)
        if predecessor is None:
            return uuid.uuid4().hex
        self._server.adopt_runs(predecessor)
        self._restarted = True
        return predecessor.incarnation

    def _check(self) -> None:
        self._iteration_at[CHECK_LOOP] = self._clock()
        healthy = self._server.check()
        if self._spark is not None:
            self._spark.check()
        self._write_note()
        if healthy:
            self._begin()
        self._accepts_runs = healthy or self._server.silent_s < SILENT_MAX_S
        if self._clock() - self._marks_seen_at >= PLANNER_READ_S:
            self._marks_seen_at = self._clock()
            self._check_ticks()
        if self._runs.ended or self._clock() - self._runs_seen_at >= RUNS_CHECK_S:
            self._runs_seen_at = self._clock()
            self._attempt(self._clean_up_runs)

    def _write_note(self) -> None:
        if self._server.sessions != self._sessions:
            self._sessions = list(self._server.sessions)
            self._server.state(self._incarnation).write(self._folder)

    def _begin(self) -> None:
        """Start heartbeats and plans, and publish the code server once the node's name is free.

        1. The note of the last incarnation was lost, and a run of that incarnation still sends
           heartbeats, so another live process has the name.
        2. If the agent published the code server now, launchers would send it runs for the old
           incarnation. These would also send heartbeats for it, and it would never expire.
        3. So the agent waits. The old incarnation expires after the old runs have ended.
        """
        if not self._members:
            address = instance_address(self._instance)
            if not address:
                return  # Dagster's sensors create it at their first tick.
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

    def _check_ticks(self) -> None:
        marks: dict[GroupKey, str] | None = None
        try:
            marks = tick_marks(self._instance, self._rows)
        except Exception as error:
            say(f"Dagster's storage did not answer: {type(error).__name__}: {error}")
        for member in self._members:
            member.record_planner_mark(None if marks is None else marks[member.key])
            silent_s = member.planner_silent_s
            member.followed = bool(silent_s) and self._followed(member)
            if silent_s and member.key not in self._silent:
                say(
                    f"The rebalance sensor of {member.key} has not ticked for {silent_s:.0f} s. "
                    f"Until it ticks, no run is launched for node {self._node}, and the node's "
                    "shards move to other nodes once no run has them open. Check that Dagster's "
                    "daemon is running and that the sensor is switched on."
                )
            change = self._silent.add if silent_s else self._silent.discard
            change(member.key)

    def _clean_up_runs(self) -> None:
        for member in self._members if self._runs.fail_dead() else ():
            steps = FailingSteps(self._clock)
            dead_runs = DeadRunCleanup(self._store, member.key, lambda: uuid.uuid4().hex, steps)
            snapshot = partial(self._store.snapshot, member.key)
            freed = dead_runs.free(self._instance, member.progress(), (), snapshot)
            for line in (*freed, *steps.notes):
                say(f"Group {member.key}: {line}.")

    def _followed(self, member: Member) -> bool:
        """Return True if a run has a shard of the node open; without an answer, the last result."""
        try:
            return bool(member.open_shards())
        except StoreError:
            return member.followed

    # -- heartbeats and plans ---------------------------------------------------------------------

    def _beat_all(self) -> None:
        while not self._left.wait(LOOP_S):
            for member in self._members:
                if self._left.is_set():
                    return
                # Set for each group: a round of many groups takes minutes if the store does not
                # answer.
                self._iteration_at[BEAT_LOOP] = self._clock()
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
        while not self._left.wait(LOOP_S):
            for member, planner in zip(self._members, self._planners, strict=True):
                if self._left.is_set():
                    return
                self._iteration_at[PLAN_LOOP] = self._clock()
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
        # At a first start, other nodes are as cold as this one.
        member.cold = self._restarted and self._spark is not None and self._spark.cold
        # Only a published node joins, because launchers find no other node.
        return member.keep_alive(accepts_runs=self._accepts_runs, joins=self._published)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do work on Dagster's storage or the lease store; print errors instead of raising them."""
        try:
            work()
        except StoreError as error:
            say(f"The lease store did not answer: {error}")
        except Exception as error:
            say(f"Dagster's storage did not answer: {type(error).__name__}: {error}")

    # -- leaving --------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Transfer the shards, let all runs finish their batches, and free the remaining shards.

        1. The node's address is withdrawn from launchers, and its queued runs are canceled.
        2. The node is marked as not accepting runs. While other nodes take its shards, its runs
           continue, so each shard has an owner until its transfer is complete.
        3. The file `leaving` makes the remaining runs stop at their next checkpoint.
        4. Once no run has a shard open, the remaining shards are freed in one transaction. Other
           nodes then claim them at their next tick instead of after the timeout.
        """
        say(f"Node {self._node} is leaving: its shards go to other nodes.")
        self._accepts_runs = False
        self._attempt(self._cancel_queued_runs)
        deadline = self._clock() + self._leave_timeout_s
        self._transfer_shards(self._clock() + self._leave_timeout_s * TRANSFER_FRACTION)
        self._mark.touch()
        while self._busy() and self._clock() < deadline:
            self._iteration_at[CHECK_LOOP] = self._clock()
            self._attempt(self._clean_up_runs)
            self._left.wait(LOOP_S)
        self._stop_threads()
        for member in self._members:
            # The other loops have ended, so their iterations are recorded here.
            self._iteration_at = dict.fromkeys(self._iteration_at, self._clock())
            try:
                say(f"Node {self._node} {_leave_group(member)}.")
            except StoreError as error:
                say(f"Node {self._node} could not leave group {member.key}: {error}")

    def _transfer_shards(self, deadline: float) -> None:
        """Wait until no transfer to another node is pending, or until the deadline."""
        while self._clock() < deadline and self._transfer_pending():
            self._iteration_at[CHECK_LOOP] = self._clock()
            self._attempt(self._clean_up_runs)
            self._check_ticks()
            self._left.wait(CHECK_S)

    def _transfer_pending(self) -> bool:
        try:
            return any(member.has_shards_to_transfer() for member in self._members)
        except StoreError as error:
            say(f"The owners of the shards of node {self._node} are unknown: {error}")
            return True

    def _cancel_queued_runs(self) -> None:
        withdraw(self._instance, self._node)
        self._runs.cancel_queued()

    def _busy(self) -> bool:
        """Return True if a run of the node is active, or if this is unknown."""
        try:
            if any(member.open_shards() for member in self._members):
                return True
            return self._runs.has_active_runs()
        except Exception:
            return True


def _leave_group(member: Member) -> str:
    try:
        outcome = member.leave()
    except UnknownGroup:
        return f"found no group {member.key} to leave"
    freed = len(outcome.shards) if isinstance(outcome, Changed) else 0
    return f"left group {member.key} and freed {freed} shard{'' if freed == 1 else 's'}"
