"""The choice of the shards that the next compactions take: pure, from counts of batches.

Nothing here keeps output safe: the claim on a shard's output does, and the lease has no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import Compacted, LedgerHead
from dagster_leasehold.sensors.launch_choice import RUNS_PER_NODE_MAX, Launch

BATCHES_MIN = 64
"""The number of new batches of a shard that are worth a run."""
BATCHES_MIN_FINISHED = 2
"""The same for a shard that is over: it gets no more."""
BATCHES_MIN_STILL = 8
"""The same for a shard whose batches are all old: it can get no more for a while."""
MANY_BATCHES = 2_048
"""The number of new batches of a shard that cut a node's pause short."""
SHARDS_PER_RUN = 64
PAUSE_S, PAUSE_OF_MANY_S = 1_800.0, 300.0
"""The shortest time between two compactions of a node, in seconds."""
PATIENCE_S = 3_600.0
"""The longest time that a compaction waits for a free slot of its node, in seconds."""
NO_SHARDS: Mapping[ShardId, int] = MappingProxyType({})
VACUUM_EVERY_RUNS = 24
VACUUM_MARGIN_S = 3_600.0
"""The time from a launch to the end of its compaction, amply, in seconds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A shard with enough batches since its last compaction, if they are old enough.

    Attributes:
        shard: its id.
        node: that compacts it.
        waiting: the number of batches since then.
        decisive: the number of the batch that has to be old; None where all of them are.
    """

    shard: ShardId
    node: NodeName
    waiting: int
    decisive: int | None


def candidates(
    keepers: Mapping[ShardId, NodeName],
    heads: Mapping[ShardId, LedgerHead],
    compacted: Mapping[ShardId, Compacted],
    pauses: Mapping[NodeName, float],
    all_old: Mapping[ShardId, int] = NO_SHARDS,
) -> list[Candidate]:
    """Return the shards worth looking at, for each node those with the most new batches first.

    Args:
        keepers: the node that compacts each shard.
        heads: the ends of the shards' ledgers.
        compacted: how far they are compacted.
        pauses: the seconds since each node's last compaction; a node without is left out.
        all_old: the shards whose batches are all old, with the number of new ones worth a run.
    """
    by_node: dict[NodeName, list[Candidate]] = {}
    for shard, node in keepers.items():
        if shard not in heads or node not in pauses:
            continue
        looked_until = compacted.get(shard, Compacted()).looked_until
        waiting = heads[shard].next_number - looked_until
        pause_s = PAUSE_OF_MANY_S if waiting >= MANY_BATCHES else PAUSE_S
        if waiting >= all_old.get(shard, BATCHES_MIN) and pauses[node] >= pause_s:
            decisive = None if shard in all_old else looked_until + BATCHES_MIN - 1
            by_node.setdefault(node, []).append(Candidate(shard, node, waiting, decisive))
    return [
        candidate
        for node in sorted(by_node)
        for candidate in sorted(by_node[node], key=lambda each: (-each.waiting, each.shard))[
            :SHARDS_PER_RUN
        ]
    ]


def due(chosen: Iterable[Candidate]) -> list[Launch]:
    """Return one run for each node with such shards."""
    by_node: dict[NodeName, list[ShardId]] = {}
    for candidate in chosen:
        by_node.setdefault(candidate.node, []).append(candidate.shard)
    return [Launch(node, tuple(shards)) for node, shards in by_node.items()]


@dataclass(slots=True)
class StillShards:
    """A memory of the ends of the shards' ledgers, and since when each has not moved.

    It can be lost: the batches of a shard that has gone quiet then count as young for longer.
    """

    _seen: dict[ShardId, tuple[int, float]] = field(
        default_factory=dict[ShardId, tuple[int, float]]
    )

    def see(self, heads: Mapping[ShardId, LedgerHead], now_s: float) -> None:
        """Take note of the ends as they are now; other shards' are forgotten."""
        before = self._seen
        self._seen = {
            shard: before[shard]
            if shard in before and before[shard][0] == head.next_number
            else (head.next_number, now_s)
            for shard, head in heads.items()
        }

    def ends(self, age_s: float, now_s: float) -> dict[ShardId, int]:
        """Return the ends that have not moved for so long, and so are old as a whole."""
        return {
            shard: number for shard, (number, at_s) in self._seen.items() if now_s - at_s >= age_s
        }


@dataclass(slots=True)
class CompactionPace:
    """A memory of each node's last compaction, and of the time that it waits for a free slot.

    It can be lost: a node then begins its next compaction sooner, and the last vacuum comes later.

    Attributes:
        began_s: the beginning of the memory, in monotonic seconds.
    """

    began_s: float = float("-inf")

    _launched_s: dict[NodeName, float] = field(default_factory=dict[NodeName, float])
    _waiting_s: dict[NodeName, float] = field(default_factory=dict[NodeName, float])

    def pauses(self, nodes: Collection[NodeName], now_s: float) -> dict[NodeName, float]:
        """Return the seconds since the last compaction of each node; endless without one."""
        return {node: now_s - self._launched_s.get(node, float("-inf")) for node in sorted(nodes)}

    def may_launch(self, node: NodeName, runs: int, now_s: float, *, queued: bool) -> bool:
        """Return True if a node has a free slot, or a compaction has waited for one too long.

        Args:
            node: of the compaction.
            runs: its runs of any kind that have not ended.
            now_s: monotonic seconds.
            queued: True if one of them has not begun to work.
        """
        if runs < RUNS_PER_NODE_MAX and not queued:
            return True
        return now_s - self._waiting_s.setdefault(node, now_s) >= PATIENCE_S

    def vacuum_due(self, age_s: float, now_s: float) -> bool:
        """Return True if all that the last compaction replaced has reached this age.

        What was launched before the memory began is older still.
        """
        last_s = max(self._launched_s.values(), default=self.began_s)
        return now_s - last_s >= age_s + VACUUM_MARGIN_S

    def note(self, node: NodeName, now_s: float) -> None:
        """Remember a launch."""
        self._launched_s[node] = now_s
        self._waiting_s.pop(node, None)
