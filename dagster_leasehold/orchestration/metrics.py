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

GAUGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "up": ("1 if the lease store answered this scrape, else 0", ()),
    "source_up": ("1 if the source answered with its lag, else 0", OF_GROUP),
    "lag_records": ("Unread records of a shard", OF_SHARD),
    "lag_known": ("1 if the number of unread records is known, else 0", OF_SHARD),
    "lag_seconds": ("Age of the oldest unread record of a shard", OF_SHARD),
    "lag_seconds_known": ("1 if that age is known, else 0", OF_SHARD),
    "shard_standing_seconds": (
        "Time that a shard with unread records has made no progress",
        OF_SHARD,
    ),
    "group_paused": ("1 if the group is paused, else 0", OF_GROUP),
    "shards": ("Shards by state", (*OF_GROUP, "state")),
    "watermark_timestamp_seconds": ("Event time that a shard has reached", OF_SHARD),
    "node_member": ("1 if the node is a member, else 0", OF_NODE),
    "node_takes_runs": (
        "1 if the node is a member, its code server answers and its daemon ticks, else 0",
        OF_NODE,
    ),
    "node_shards": ("Shards that a node can consume", OF_NODE),
    "gaps": (
        "Ranges of records that were removed before they were consumed",
        (*OF_GROUP, "acknowledged"),
    ),
    "ledger_rows": ("Rows of committed batches", OF_GROUP),
    "unpublished_batches": ("Committed batches not in the table yet", OF_GROUP),
    "unpublished_records": ("Records of these batches", OF_GROUP),
    "publication_lag_seconds": ("Age of the oldest of these batches", OF_GROUP),
    "held_batches": ("Committed batches that a publication check holds", OF_GROUP),
    "upkeep_statements": (
        "Statements for membership in the group in the last lease term",
        (*OF_GROUP, "kind"),
    ),
    "upkeep_term_seconds": ("Length of a lease term", OF_GROUP),
}
"""The meaning and the labels of each gauge; all names begin with `leasehold_`."""
COUNTERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "node_beats": ("Heartbeats of a node", OF_NODE),
    "committed_records": ("Records of output", OF_SHARD),
    "committed_bytes": ("Bytes of keys and values read", OF_SHARD),
    "committed_batches": ("Batches", OF_SHARD),
    "quarantined_records": ("Records in quarantine", OF_SHARD),
    "takeovers": ("Shards taken from a node that died or left", OF_GROUP),
    "handovers": ("Completed transfers between live nodes", OF_GROUP),
    "journal_entries": ("Journal entries by kind", (*OF_GROUP, "kind")),
}


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
            scrape = _Scrape()
            try:
                store = self.store()
                for group in store.groups():
                    self._collect_group(scrape, store, group.key)
            except LeaseholdError:
                scrape.add("up", [], 0)
            else:
                scrape.add("up", [], 1)
            return scrape.families.values()

    def _collect_group(self, scrape: _Scrape, store: LeaseStore, key: GroupKey) -> None:
        snapshot = store.snapshot(key)
        changes = self._changes.setdefault(key, _Changes(self.clock))
        changes.advance(store, key)
        of = [str(key.stream), str(key.group)]
        scrape.add_shards(of, snapshot.shards)
        scrape.add_nodes(of, snapshot.nodes, snapshot.shards)
        scrape.add_totals(of, store.totals(key))
        scrape.add("ledger_rows", of, store.ledger_rows(key))
        scrape.add_changes(of, changes)
        waiting = PublicationLag.of(store.publication_lag(key))
        scrape.add("unpublished_batches", of, waiting.batches)
        scrape.add("unpublished_records", of, waiting.records)
        scrape.add("publication_lag_seconds", of, waiting.seconds(self.now()))
        scrape.add("held_batches", of, sum(each.lag.batches for each in store.held_output(key)))
        for acknowledged, count in store.gap_counts(key).items():
            scrape.add("gaps", [*of, "yes" if acknowledged else "no"], count)
        scrape.add("group_paused", of, int(snapshot.group.paused))
        source = self.source(key)
        if source is not None:
            lags = lags_of(source, snapshot.shards)
            unread, stalled = self._lag_times.setdefault(
                key, (UnreadTimes(self.clock), StalledShards(self.clock))
            )
            scrape.add_lags(of, lags, lags.seconds(unread.of(source, lags.behind), self.now()))
            for shard, seconds in stalled.seconds(lags).items():
                scrape.add("shard_standing_seconds", [*of, shard], seconds)
        report = self.upkeep(key)
        if report is not None:
            scrape.add_upkeep(of, report)


class _Scrape:
    def __init__(self) -> None:
        self.families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: family(f"leasehold_{name}", text, labels=labels)
            for family, metrics in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS))
            for name, (text, labels) in metrics.items()
        }

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        """Add the value of a metric."""
        self.families[name].add_metric(labels, value)

    def add_shards(self, of: list[str], leases: Sequence[ShardLease]) -> None:
        """Add states and watermarks of shards."""
        states = Counter(lease.state for lease in leases)
        for state in ShardState:
            self.add("shards", [*of, state.value], states[state])
        for lease in leases:
            if lease.watermark is not None:
                self.add(
                    "watermark_timestamp_seconds", [*of, lease.shard], lease.watermark.timestamp()
                )

    def add_lags(self, of: list[str], lags: Lags, ages: Mapping[ShardId, float]) -> None:
        """Add the number of unread records of each shard, and the age of the oldest one."""
        some_known = any(lag is not None for lag in lags.records.values())
        self.add("source_up", of, 0 if lags.trouble and not some_known else 1)
        for shard, lag in lags.records.items():
            age = ages.get(shard)
            # An alert on a missing lag or NaN never fires, so `…_known` is always exported.
            self.add("lag_known", [*of, shard], int(lag is not None))
            self.add("lag_seconds_known", [*of, shard], int(age is not None))
            if lag is not None:
                self.add("lag_records", [*of, shard], lag)
            if age is not None:
                self.add("lag_seconds", [*of, shard], age)

    def add_nodes(self, of: list[str], nodes: Sequence[Node], leases: Sequence[ShardLease]) -> None:
        """Add the membership, heartbeats and number of shards of each node."""
        shards_by_node = Counter(lease.consumer_owner for lease in leases)
        for node in nodes:
            labels = [*of, str(node.name)]
            self.add("node_member", labels, int(node.member))
            self.add("node_takes_runs", labels, int(node.member and node.accepts_runs))
            self.add("node_beats", labels, node.lease_id)
            self.add("node_shards", labels, shards_by_node[node.name])

    def add_totals(self, of: list[str], totals: Iterable[ShardTotals]) -> None:
        """Add the totals of all commits."""
        for total in totals:
            if total.batches:
                labels = [*of, total.shard]
                self.add("committed_records", labels, total.records)
                self.add("committed_bytes", labels, total.bytes)
                self.add("committed_batches", labels, total.batches)
                self.add("quarantined_records", labels, total.quarantined)

    def add_changes(self, of: list[str], changes: _Changes) -> None:
        """Add the counts of journal entries."""
        for kind, count in sorted(changes.kinds.items()):
            self.add("journal_entries", [*of, kind], count)
        self.add("takeovers", of, changes.takeovers)
        self.add("handovers", of, changes.handovers)

    def add_upkeep(self, of: list[str], report: UpkeepReport) -> None:
        """Add the statements for membership in a group."""
        self.add("upkeep_term_seconds", of, report.term_s)
        for kind, count in report.statements.items():
            self.add("upkeep_statements", [*of, kind], count)
