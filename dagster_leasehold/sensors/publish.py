"""The step `publish`: publishes batches that no run has published, and observes the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial

import dagster as dg

from dagster_leasehold.assets.checks import ShardCheck, should_store
from dagster_leasehold.assets.content_checks import check_contents
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.output.table.publish_rounds import PublishRounds
from dagster_leasehold.assets.run_process import run_ended
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.assets.table_check import check_table
from dagster_leasehold.assets.table_metadata import observed_snapshot, table_observation
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.publication_rows import PublicationLag
from dagster_leasehold.lease_store.rules.liveness import steady_clock
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.sensors.steps import Outcome, Step, Tick

TICK_EARLY_S = 1.0
"""How early a publication can be, in seconds. Otherwise a tick that is slightly early would skip
it, and the interval would double."""
OBSERVE_EVERY_S = 300.0
"""The shortest time between two observations of a table, in seconds; Dagster stores all of them."""
CHECK_EVERY_S = 3_600.0
"""The time between two comparisons of table and ledger, in seconds."""
COMPARING = "comparing table and ledger"


@dataclass
class TableWatch:
    """The Dagster events about a stream's table.

    Attributes:
        now: the current time, for the age of unpublished batches.
    """

    rounds: PublishRounds
    now: Callable[[], datetime] = utc_now
    _observed: int | None = None
    _observation_due_s: float = float("-inf")
    _check_due_s: float = float("-inf")
    _contents: dict[str, ShardCheck] = field(default_factory=dict[str, ShardCheck])

    def observed(self, instance: dg.DagsterInstance) -> list[dg.AssetObservation]:
        """Return an observation if the table has changed, at most one in `OBSERVE_EVERY_S`."""
        if (
            self.rounds.snapshot in (None, self._observed)
            or self.rounds.clock() < self._observation_due_s
        ):
            return []
        self._observation_due_s = self.rounds.clock() + OBSERVE_EVERY_S
        self._observed = self._observed or observed_snapshot(instance, self.rounds.stream)
        if self._observed == self.rounds.snapshot:
            return []
        # Imported here, because only deployments with a table need PyIceberg.
        from dagster_leasehold.assets.output.table.group_table import find_table

        stream, deployment = self.rounds.stream, self.rounds.deployment
        store, key = deployment.store(), stream.key
        place, catalog = deployment.output_folder(key), deployment.catalog
        publication = store.publication(key)
        table = find_table(store, key, catalog, place)
        if publication is None or table is None:
            return []
        lag = PublicationLag.of(store.publication_lag(key))
        self._observed = publication.snapshot
        return [table_observation(stream, publication, table[0], lag, self.now())]

    def checked(self, instance: dg.DagsterInstance) -> list[dg.AssetCheckEvaluation]:
        """Compare table and ledger once in `CHECK_EVERY_S`; return the outcome if it is new.

        A comparison that fails is retried after a wait.
        """
        if self.rounds.snapshot is None or self.rounds.clock() < self._check_due_s:
            return []
        self._check_due_s = self.rounds.clock() + CHECK_EVERY_S
        rounds = self.rounds
        check = rounds.steps.attempt(
            COMPARING, lambda: check_table(rounds.stream, rounds.deployment), None
        )
        if check is None:
            self._check_due_s = float("-inf")
            return []
        evaluation = check.evaluation(self.rounds.stream, None)
        return [evaluation] if should_store(instance, evaluation, self.now()) else []

    def checked_contents(self, instance: dg.DagsterInstance) -> list[dg.AssetCheckEvaluation]:
        """Return the outcomes of the publication checks that are new."""
        rounds = self.rounds
        new: list[dg.AssetCheckEvaluation] = []
        for check in check_contents(rounds.stream, rounds.deployment):
            if check.repeats(self._contents.get(check.name)):
                continue
            self._contents[check.name] = check
            evaluation = check.evaluation(rounds.stream, None)
            if should_store(instance, evaluation, self.now()):
                new.append(evaluation)
        return new


def publish_step(stream: ShardStream, deployment: Deployment) -> Step:
    """Return the step `publish`."""

    @cache
    def watch_of(instance: dg.DagsterInstance) -> TableWatch:
        def nodes() -> dict[NodeName, str]:
            address = instance_address(instance)
            own = deployment.own(deployment.store().pulse(stream.key).nodes, address)
            return {node.name: node.incarnation for node in own}

        ended = partial(run_ended, instance)
        return TableWatch(
            PublishRounds(
                stream, deployment, nodes, steady_clock, ended=ended, early_s=TICK_EARLY_S
            )
        )

    def work(tick: Tick) -> Outcome:
        watch = watch_of(tick.instance)
        line, trouble = watch.rounds.tick()
        events = [*watch.observed(tick.instance), *watch.checked_contents(tick.instance)]
        # After a failed publication, the check would fail for the same reason.
        for event in [*events, *([] if trouble else watch.checked(tick.instance))]:
            tick.instance.report_runless_asset_event(event)
        return Outcome(line, trouble=trouble)

    return Step(stream, "publish", work)
