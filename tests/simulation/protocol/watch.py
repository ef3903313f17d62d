"""The invariants, checked after every call that could have written, and completely from time to
time.

Those of nodes are here: counters only rise, and no node is lost while it trusts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dagster_leasehold.lease_store.group_rows import Node, Snapshot
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from tests.histories import check_history
from tests.simulation.protocol.measures import Measures
from tests.simulation.protocol.ports import Members
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.seam import SECRET
from tests.simulation.protocol.shard_watch import Call, ShardWatch
from tests.simulation.protocol.stage import Stage

ROUNDING_S = 1e-6


class NodeWatch:
    """Compares the rows of nodes with those of the call before.

    Args:
        stage: the stage.
        members: the nodes themselves.
        works: returns True if a node had a shard open before the call.
    """

    def __init__(self, stage: Stage, members: Members, works: Callable[[NodeName], bool]) -> None:
        self._stage = stage
        self._members = members
        self._works = works
        self._nodes: dict[NodeName, Node] = {}
        self._left: set[tuple[NodeName, str]] = set()
        self._excused: set[tuple[NodeName, str]] = set()
        self._lost_until = 0.0
        self._repeated_until: dict[NodeName, int] = {}

    def beaten(self, nodes: Iterable[Node]) -> None:
        """Take the rows as a beat left them."""
        self._nodes |= {node.name: node for node in nodes}

    def restored(self, snapshot: Snapshot) -> None:
        """Take the rows that a store has which lost its last commits."""
        # Counters repeat after such a loss, so one of them can look as if it had stalled.
        for node in self._nodes.values():
            highest = max(node.lease_id, self._repeated_until.get(node.name, 0))
            self._repeated_until[node.name] = highest
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._lost_until = self._stage.now + 2 * self._stage.config.timeout_s

    def compare(self, verb: str, snapshot: Snapshot) -> bool:
        """Check the rows after a call; return True if the set of members has changed."""
        changed = False
        for node in snapshot.nodes:
            before = self._nodes.get(node.name)
            if before is node or before == node:
                continue
            self._nodes[node.name] = node
            if before is None or before.incarnation != node.incarnation:
                self._excused.discard((node.name, node.incarnation))
            if before is not None and node.lease_id < before.lease_id:
                self._stage.violated(f"I1: the counter of {node.name} went back")
            if before is not None and before.member and before.incarnation != node.incarnation:
                self._check_distrusted(before, "left" if verb == "leave" else "pushed out")
            changed = changed or before is None or before.incarnation != node.incarnation
            changed = changed or before is None or before.accepts_runs != node.accepts_runs
        return changed

    def check_renewed(self, name: NodeName, incarnation: str) -> None:
        """I4: only the current incarnation of a name is renewed; checked after each beat.

        A node that lost its place within the excused time beats once more before it notices.
        """
        node = self._nodes.get(name)
        if node is None or (name, incarnation) in self._excused:
            return
        if node.incarnation != incarnation:
            late = Node(name, node.lease_id, incarnation)
            self._check_distrusted(late, "renewed under another's name")

    def _check_distrusted(self, node: Node, how: str) -> None:
        """I4: a node that is lost had stopped trusting itself before.

        A node that leaves with no shard open relied on nothing: a run that opens one later is no
        longer its holder.
        """
        now = self._stage.now
        member = (node.name, node.incarnation)
        if how == "left" and not self._works(node.name):
            self._left.add(member)
        repeated = node.lease_id <= self._repeated_until.get(node.name, -1)
        if repeated or now < self._lost_until:
            self._excused.add(member)
        if member in self._left | self._excused:
            return
        # A node that leaves has let its runs end first; their windows no longer count.
        trusts = self._members.trust_of(node.name, node.incarnation, ended=how != "left")
        for trusted_until in trusts:
            if trusted_until > now + ROUNDING_S:
                self._stage.violated(
                    f"I4: {node.name} was {how} while it still trusted itself "
                    f"for {trusted_until - now:.3f} s"
                )


class Watch:
    """Compares the rows after each call with the rows before it.

    It knows the rules, not the store's code, so it finds a store that breaks a rule.
    """

    def __init__(self, stage: Stage, members: Members, measures: Measures) -> None:
        self._stage = stage
        self._measures = measures
        self._shards = ShardWatch(stage, members, measures)
        self._nodes = NodeWatch(stage, members, self._shards.works)

    def after(self, verb: str, process: Process, args: tuple[Any, ...]) -> None:
        """Check the rows after a call."""
        stage = self._stage
        if verb == "beat":
            self._nodes.beaten(stage.store.pulse(stage.key).nodes)
            return
        snapshot = stage.store.snapshot(stage.key)
        if self._nodes.compare(verb, snapshot):
            self._measures.restart_rounds()
        if self._shards.compare(Call(verb, process, args), snapshot):
            self._measures.restart_rounds()

    def acknowledge(self, process: Process, commits: Sequence[BatchCommit]) -> None:
        """Check that batches which a run takes for committed became visible under its token."""
        self._shards.acknowledge(process, commits)

    def beaten(self, node: NodeName, incarnation: str) -> None:
        """Check that a beat renewed only the current incarnation of the name."""
        self._nodes.check_renewed(node, incarnation)

    def hear(self, *texts: str) -> None:
        """I10: check that no secret is in a log line, a report or a cursor."""
        for text in texts:
            if SECRET in text:
                self._stage.violated(f"I10: a secret was said: {text.replace(SECRET, '***')[:200]}")

    def restored(self) -> None:
        """Start again with the rows of a store that lost its last commits."""
        stage = self._stage
        stage.restores += 1
        snapshot = stage.store.snapshot(stage.key)
        self._shards.restored(snapshot)
        self._nodes.restored(snapshot)
        self._measures.restored()

    def check_history(self) -> None:
        """Check all that the journal, the ledger and the outbox show as a whole."""
        stage, store = self._stage, self._stage.store
        snapshot = store.snapshot(stage.key)
        batches, journal = store.batches(stage.key), store.journal(stage.key)
        gaps = store.gaps(stage.key)
        ordered = snapshot.group.ordered
        for violation in check_history(snapshot.shards, journal, batches, gaps, ordered=ordered):
            stage.violated(f"I3: {violation}")
        self.hear(*map(str, (snapshot, batches, journal, gaps)))
        committed = {batch.batch_id for batch in batches}
        events = [event.batch_id for event in store.pending_events(stage.key, limit=10**9)]
        if len(events) != len(set(events)):
            doubled = sorted({event for event in events if events.count(event) > 1})
            stage.violated(f"I9: more than one event for the batches {', '.join(doubled)}")
        if missing := sorted(committed.difference(events)):
            stage.violated(f"I9: no event for the batches {', '.join(missing)}")
