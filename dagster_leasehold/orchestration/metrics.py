"""The lease store as Prometheus metrics. A scrape only reads the store.

The cost of a scrape depends on a group's shards, nodes and new journal entries, not on its age. The
store keeps the totals of commits, so these counters survive a restart of the exporter. Counters of
journal entries start at 0 when the exporter first reads the group.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.journal_tail import JournalTail
from dagster_leasehold.lease_store.ledger_rows import ShardTotals
from dagster_leasehold.lease_store.publication_rows import PublicationLag
from dagster_leasehold.lease_store.roles.ledger import Ledger
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease
from dagster_leasehold.lease_store.store import LeaseStore
from dagster_leasehold.lease_store.times import utc_now
from dagster_leasehold.orchestration.group_history import RELEASES
from dagster_leasehold.sensors.statement_counts import UpkeepReport
from dagster_leasehold.shard_sources.lag import Lags, StalledShards, UnreadTimes, lags_of
from dagster_leasehold.shard_sources.source import ShardSource

HANDOVER_EDGE = 6

OF_GROUP = ("stream", "group")
OF_SHARD = (*OF_GROUP, "shard")
OF_NODE = (*OF_GROUP, "node")


class _Changes:
    """Counts of a group's journal entries since the exporter first read the group."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.kinds: Counter[str] = Counter()
        self.takeovers = 0
        self.handovers = 0
        self._tail = JournalTail(clock)

    def advance(self, store: Ledger, key: GroupKey) -> None:
        """Count new entries."""
        for entry in self._tail.read(store, key):
            self.kinds[entry.kind] += 1
            self.takeovers += entry.edge in RELEASES
            self.handovers += entry.edge == HANDOVER_EDGE


@dataclass(eq=False)
class StoreCollector(Collector):
    """The metrics of all groups of a lease store.

    Attributes:
        source: returns the source of a group's stream; None if the stream is not declared here.
        upkeep: returns the recorded statements for membership in a group; None if none are.
        now: the wall clock, for the age of unread records.
    """

    store: Callable[[], LeaseStore]
    source: Callable[[GroupKey], ShardSource | None] = lambda _: None
    upkeep: Callable[[GroupKey], UpkeepReport | None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
    _changes: dict[GroupKey, _Changes] = field(default_factory=dict[GroupKey, _Changes])
    _lag_times: dict[GroupKey, tuple[UnreadTimes, StalledShards]] = field(
        default_factory=dict[GroupKey, tuple[UnreadTimes, StalledShards]]
    )
    _lock: Lock = field(default_factory=Lock)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of one scrape; `…_up` is 0 if the store or a source fails."""
        with self._lock:
            families = _Families()
            try:
                store = self.store()
                for group in store.groups():
                    self._collect_group(families, store, group.key)
            except LeaseholdError:
                families.up.add_metric([], 0)
            else:
                families.up.add_metric([], 1)
            return families.all()

    def _collect_group(self, families: _Families, store: LeaseStore, key: GroupKey) -> None:
        snapshot = store.snapshot(key)
        changes = self._changes.setdefault(key, _Changes(self.clock))
        changes.advance(store, key)
        of = [str(key.stream), str(key.group)]
        families.add_shards(of, snapshot.shards)
        families.add_nodes(of, snapshot.nodes, snapshot.shards)
        families.add_totals(of, store.totals(key))
        families.ledger_rows.add_metric(of, store.ledger_rows(key))
        families.add_changes(of, changes)
        waiting = PublicationLag.of(store.publication_lag(key))
        families.unpublished_batches.add_metric(of, waiting.batches)
        families.unpublished_records.add_metric(of, waiting.records)
        families.publication_lag.add_metric(of, waiting.seconds(self.now()))
        for acknowledged, count in store.gap_counts(key).items():
            families.gaps.add_metric([*of, "yes" if acknowledged else "no"], count)
        families.paused.add_metric(of, int(snapshot.group.paused))
        source = self.source(key)
        if source is not None:
            lags = lags_of(source, snapshot.shards)
            unread, stalled = self._lag_times.setdefault(
                key, (UnreadTimes(self.clock), StalledShards(self.clock))
            )
            families.add_lags(of, lags, lags.seconds(unread.of(source, lags.behind), self.now()))
            for shard, seconds in stalled.seconds(lags).items():
                families.stalled.add_metric([*of, shard], seconds)
        report = self.upkeep(key)
        if report is not None:
            families.add_upkeep(of, report)


class _Families:
    def __init__(self) -> None:
        self._all: list[Metric] = []
        gauge, counter = self._gauge, self._counter
        self.up = gauge("leasehold_up", "1 if the lease store answered this scrape, else 0", ())
        self.source_up = gauge(
            "leasehold_source_up", "1 if the source answered with its lag, else 0", OF_GROUP
        )
        self.lag = gauge("leasehold_lag_records", "Unread records of a shard", OF_SHARD)
        self.lag_known = gauge(
            "leasehold_lag_known", "1 if the number of unread records is known, else 0", OF_SHARD
        )
        self.lag_seconds = gauge(
            "leasehold_lag_seconds", "Age of the oldest unread record of a shard", OF_SHARD
        )
        self.lag_seconds_known = gauge(
            "leasehold_lag_seconds_known", "1 if that age is known, else 0", OF_SHARD
        )
        self.stalled = gauge(
            "leasehold_shard_standing_seconds",
            "Time that a shard with unread records has made no progress",
            OF_SHARD,
        )
        self.paused = gauge("leasehold_group_paused", "1 if the group is paused, else 0", OF_GROUP)
        self.shards = gauge("leasehold_shards", "Shards by state", (*OF_GROUP, "state"))
        self.watermark = gauge(
            "leasehold_watermark_timestamp_seconds", "Event time that a shard has reached", OF_SHARD
        )
        self.members = gauge("leasehold_node_member", "1 if the node is a member, else 0", OF_NODE)
        self.takes_runs = gauge(
            "leasehold_node_takes_runs",
            "1 if the node is a member, its code server answers and its daemon ticks, else 0",
            OF_NODE,
        )
        self.held = gauge("leasehold_node_shards", "Shards that a node can consume", OF_NODE)
        self.gaps = gauge(
            "leasehold_gaps",
            "Ranges of records that were removed before they were consumed",
            (*OF_GROUP, "acknowledged"),
        )
        self.ledger_rows = gauge("leasehold_ledger_rows", "Rows of committed batches", OF_GROUP)
        self.unpublished_batches = gauge(
            "leasehold_unpublished_batches", "Committed batches not in the table yet", OF_GROUP
        )
        self.unpublished_records = gauge(
            "leasehold_unpublished_records", "Records of these batches", OF_GROUP
        )
        self.publication_lag = gauge(
            "leasehold_publication_lag_seconds", "Age of the oldest of these batches", OF_GROUP
        )
        self.upkeep = gauge(
            "leasehold_upkeep_statements",
            "Statements for membership in the group in the last lease term",
            (*OF_GROUP, "kind"),
        )
        self.term = gauge("leasehold_upkeep_term_seconds", "Length of a lease term", OF_GROUP)
        self.beats = counter("leasehold_node_beats", "Heartbeats of a node", OF_NODE)
        self.records = counter("leasehold_committed_records", "Records of output", OF_SHARD)
        self.bytes = counter("leasehold_committed_bytes", "Bytes of keys and values read", OF_SHARD)
        self.batches = counter("leasehold_committed_batches", "Batches", OF_SHARD)
        self.bad = counter("leasehold_quarantined_records", "Records in quarantine", OF_SHARD)
        self.takeovers = counter(
            "leasehold_takeovers", "Shards taken from a node that died or left", OF_GROUP
        )
        self.handovers = counter(
            "leasehold_handovers", "Completed transfers between live nodes", OF_GROUP
        )
        self.journal = counter(
            "leasehold_journal_entries", "Journal entries by kind", (*OF_GROUP, "kind")
        )

    def _gauge(self, name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=labels)
        self._all.append(family)
        return family

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=labels)
        self._all.append(family)
        return family

    def all(self) -> list[Metric]:
        """Return all families."""
        return self._all

    def add_shards(self, of: list[str], leases: Sequence[ShardLease]) -> None:
        """Add states and watermarks of shards."""
        states = Counter(lease.state for lease in leases)
        for state in ShardState:
            self.shards.add_metric([*of, state.value], states[state])
        for lease in leases:
            if lease.watermark is not None:
                self.watermark.add_metric([*of, lease.shard], lease.watermark.timestamp())

    def add_lags(self, of: list[str], lags: Lags, ages: Mapping[ShardId, float]) -> None:
        """Add the number of unread records of each shard, and the age of the oldest one."""
        some_known = any(lag is not None for lag in lags.records.values())
        self.source_up.add_metric(of, 0 if lags.trouble and not some_known else 1)
        for shard, lag in lags.records.items():
            age = ages.get(shard)
            # An alert on a missing lag or NaN never fires, so `…_known` is always exported.
            self.lag_known.add_metric([*of, shard], int(lag is not None))
            self.lag_seconds_known.add_metric([*of, shard], int(age is not None))
            if lag is not None:
                self.lag.add_metric([*of, shard], lag)
            if age is not None:
                self.lag_seconds.add_metric([*of, shard], age)

    def add_nodes(self, of: list[str], nodes: Sequence[Node], leases: Sequence[ShardLease]) -> None:
        """Add the membership, heartbeats and number of shards of each node."""
        shards_by_node = Counter(lease.consumer_owner for lease in leases)
        for node in nodes:
            labels = [*of, str(node.name)]
            self.members.add_metric(labels, int(node.member))
            self.takes_runs.add_metric(labels, int(node.member and node.accepts_runs))
            self.beats.add_metric(labels, node.lease_id)
            self.held.add_metric(labels, shards_by_node[node.name])

    def add_totals(self, of: list[str], totals: Iterable[ShardTotals]) -> None:
        """Add the totals of all commits."""
        for total in totals:
            if total.batches:
                labels = [*of, total.shard]
                self.records.add_metric(labels, total.records)
                self.bytes.add_metric(labels, total.bytes)
                self.batches.add_metric(labels, total.batches)
                self.bad.add_metric(labels, total.quarantined)

    def add_changes(self, of: list[str], changes: _Changes) -> None:
        """Add the counts of journal entries."""
        for kind, count in sorted(changes.kinds.items()):
            self.journal.add_metric([*of, kind], count)
        self.takeovers.add_metric(of, changes.takeovers)
        self.handovers.add_metric(of, changes.handovers)

    def add_upkeep(self, of: list[str], report: UpkeepReport) -> None:
        """Add the statements for membership in a group."""
        self.term.add_metric(of, report.term_s)
        for kind, count in report.statements.items():
            self.upkeep.add_metric([*of, kind], count)
