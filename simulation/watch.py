"""The invariants, checked after every call that may have written, and as a whole now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.ledger_rows import BatchCommit
from dagster_leasehold.lease_store.rules.verification import check_history
from dagster_leasehold.simulation.measures import Measures
from dagster_leasehold.simulation.node_watch import NodeWatch
from dagster_leasehold.simulation.ports import Members
from dagster_leasehold.simulation.schedule import Process
from dagster_leasehold.simulation.seam import SECRET
from dagster_leasehold.simulation.shard_watch import Call, ShardWatch
from dagster_leasehold.simulation.stage import Stage


class Watch:
    """Compares what each call left with what was there before it.

    It knows the rules, not the store's code: a store that breaks one is found, whatever it thinks
    of itself.
    """

    def __init__(self, stage: Stage, members: Members, measures: Measures) -> None:
        self._stage = stage
        self._measures = measures
        self._shards = ShardWatch(stage, members, measures)
        self._nodes = NodeWatch(stage, members, self._shards.works)

    def after(self, verb: str, process: Process, args: tuple[Any, ...]) -> None:
        """Check the rows that a call left behind."""
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
        """Check that a beat renewed nobody but the incarnation that answers to the name."""
        self._nodes.check_renewed(node, incarnation)

    def hear(self, *texts: str) -> None:
        """I10: check that no secret is in a log line, a report or a cursor."""
        for text in texts:
            if SECRET in text:
                self._stage.violated(f"I10: a secret was said: {text.replace(SECRET, '***')[:200]}")

    def restored(self) -> None:
        """Begin anew with what a store holds that lost its last commits."""
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
