"""The nodes that one process keeps alive in a group: they join, beat, and leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from dagster_leasehold.lease_store.errors import AssignmentConflict, NodeNameTaken, StoreError
from dagster_leasehold.lease_store.group_rows import Node, Pulse
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.membership import Membership
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.rules.assignment_plan import Refusal, listed
from dagster_leasehold.lease_store.rules.failing_steps import FailingSteps
from dagster_leasehold.lease_store.rules.liveness import Clock, Observations
from dagster_leasehold.lease_store.rules.refusals import name_taken
from dagster_leasehold.lease_store.rules.registration import same_but_counter
from dagster_leasehold.lease_store.store import GroupsAndNodes
from dagster_leasehold.lease_store.tick_report import TickNotes


@dataclass(slots=True)
class ServedNodes:
    """The nodes that this process keeps alive, tick by tick.

    Attributes:
        settings: assignment settings, address and readiness to register the nodes with.
        beat_s: the interval between two beats, in seconds.
        clock: monotonic seconds.
        observer: named in the journal.
        steps: the steps that failed, and when each is due again.
        notes: of the present tick.
    """

    store: GroupsAndNodes
    key: GroupKey
    settings: dict[NodeName, Node]
    beat_s: float
    clock: Clock
    observer: str
    steps: FailingSteps
    notes: TickNotes
    _members: dict[NodeName, Membership] = field(default_factory=dict[NodeName, Membership])
    _ticked_at: float | None = None

    @property
    def incarnations(self) -> dict[NodeName, str]:
        """The incarnation under which each node is kept alive; empty before `begin`."""
        return {name: member.incarnation for name, member in self._members.items()}

    @property
    def beaten_at(self) -> dict[NodeName, float]:
        """The moment before the last confirmed beat of each node was sent."""
        members = self._members.items()
        return {name: each.beaten_at for name, each in members if each.beaten_at is not None}

    def begin(self, names: Iterable[NodeName], incarnation_of: Callable[[NodeName], str]) -> None:
        """Name the nodes, each under the incarnation to go on with."""
        self._members = {
            name: Membership(
                self.store, self.key, name, incarnation_of(name), self.clock, self.notes.count
            )
            for name in names
        }

    def offer(self, node: Node) -> None:
        """Change the settings that a node registers with; the next tick sends them."""
        self.settings[node.name] = node

    def own(self, nodes: Iterable[Node]) -> set[NodeName]:
        """Return the members that this process itself keeps alive: it awaits no beat of theirs."""
        incarnations = self.incarnations
        return {
            node.name
            for node in nodes
            if node.member and incarnations.get(node.name) == node.incarnation
        }

    def keep_alive(self, pulse: Pulse, observations: Observations) -> bool:
        """Beat for the nodes, or register them; return True if the membership changed."""
        rows = {node.name: node for node in pulse.nodes}
        changed = False
        for name in self._members:
            # Those before it in the loop may just have joined or left.
            now = replace(pulse, nodes=tuple(rows.values()))
            keep = partial(self._keep_one, name, now, rows, observations)
            # Only a node whose step failed is not kept alive, and a beat cannot wait.
            changed = self.steps.attempt(f"node {name}", keep, False, at_once=True) or changed
        return changed

    def end_tick(self) -> None:
        """Take note that a tick ends: the time to the next one shows how far apart ticks are."""
        self._ticked_at = self.clock()

    def leave(self) -> list[str]:
        """Leave with all nodes; return one line for each that left.

        Raises:
            StoreError: at least one node could not leave; the others have left all the same.
        """
        lines: list[str] = []
        failure: StoreError | None = None
        for name, member in self._members.items():
            try:
                outcome = member.leave()
            except StoreError as error:
                failure = error
                continue
            if isinstance(outcome, Changed):
                lines.append(f"{name} left and freed {listed(outcome.shards)}")
        if failure is not None:
            raise failure
        return lines

    def _keep_one(
        self, name: NodeName, pulse: Pulse, rows: dict[NodeName, Node], observations: Observations
    ) -> bool:
        member, row = self._members[name], rows.get(name)
        wanted = member.row(self.settings.get(name, Node(name, 0, "")))
        if row is not None and same_but_counter(row, wanted):
            if not self._beat_due(member) or member.beat():
                return False
            self.notes.decide(f"{name} lost its place in the group: it joins again")
        if self._register(member, wanted, pulse, observations):
            rows[name] = wanted
            return True
        if row is not None and row.incarnation == wanted.incarnation and self._resign(member):
            rows[name] = replace(row, incarnation="")
            return True
        return False

    def _beat_due(self, member: Membership) -> bool:
        """Return True if the beat would be late if it were left to the next tick."""
        now = self.clock()
        if member.beaten_at is None or self._ticked_at is None:
            return True
        return (now - member.beaten_at) + (now - self._ticked_at) >= self.beat_s

    def _register(
        self, member: Membership, wanted: Node, pulse: Pulse, observations: Observations
    ) -> bool:
        name, limit_s = wanted.name, pulse.group.timeout_s
        how = "joined"
        if member.rival(pulse.nodes) is None:
            own = (name, wanted.incarnation)
            if any((row.name, row.incarnation) == own for row in pulse.nodes):
                how = "changed its settings"
        elif name in observations.lapsed(limit_s):
            how = "took its name back from a process that stopped"
        try:
            registered = member.register(wanted, pulse, observations, observer=self.observer)
        except AssignmentConflict as error:
            self._refuse(name, error)
            return False
        if not registered:
            note = (
                f"Its beat has stood still for {observations.unchanged_s(name):.0f} s; after "
                f"{limit_s:g} s the name is taken over."
            )
            self._refuse(name, name_taken(self.key, name, note))
            return False
        self.notes.decide(f"{name} {how}")
        return True

    def _resign(self, member: Membership) -> bool:
        """Leave a group whose members contradict what the node says of itself now.

        Of two nodes that changed their source_count, each would else be refused for ever, because
        the other is a member with the old one.
        """
        if any(each.consumer_run for each in member.progress()):
            self.notes.decide(f"{member.node} leaves once its runs have ended")
            return False
        outcome = member.leave()
        if not isinstance(outcome, Changed):
            return False
        self.notes.decide(f"{member.node} left, freed {listed(outcome.shards)}")
        return True

    def _refuse(self, name: NodeName, error: AssignmentConflict | NodeNameTaken) -> None:
        self.notes.refusals.append(Refusal(name, error))
        self.notes.decide(f"{name} could not join: {error}")
