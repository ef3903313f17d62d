"""The placement of a run: the node for which it consumes each of its shards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_leasehold.assets.consuming.ownership import (
    Finished,
    MayClaim,
    MayConsume,
    Refused,
    claim_for_run,
    close_ended_tenure,
    standing_of,
)
from dagster_leasehold.assets.consuming.run_requests import LET_GO_TAG
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.run_process import ended_runs
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_weights import planning_snapshot

LOOK_AGAIN_S = 1.0
LOOKS_MAX = 20


@dataclass(slots=True)
class Placement:
    """The nodes of a run's shards.

    Attributes:
        nodes: the node that holds the shard, for each that may be consumed.
        incarnations: the incarnation under which each of those nodes is alive.
        finished: shards that are over.
    """

    nodes: dict[ShardId, NodeName] = field(default_factory=dict)
    incarnations: dict[NodeName, str] = field(default_factory=dict)
    finished: set[ShardId] = field(default_factory=set)

    def by_node(self) -> dict[NodeName, list[ShardId]]:
        """Return the shards to consume for each node."""
        shards: dict[NodeName, list[ShardId]] = {}
        for shard, node in self.nodes.items():
            shards.setdefault(node, []).append(shard)
        return shards


@dataclass(frozen=True, slots=True)
class Placer:
    """Finds the node for which one run consumes each of its shards.

    Attributes:
        instance: knows which other runs have ended.
        key: the group.
        deployment: whose nodes may consume.
        run: the run's id, for the journal.
        wanted: the node that the launcher named, or None to take whichever holds the shard.
    """

    instance: dg.DagsterInstance
    key: GroupKey
    deployment: Deployment
    run: str
    wanted: str | None

    def place(
        self,
        shards: Sequence[ShardId],
        *,
        wait_s: float,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Placement:
        """Place every shard; claims those that are free.

        A shard that another run has open is asked for and waited for, at most `wait_s` seconds in
        all; where that run has ended, its tenure is closed.

        Raises:
            Failure: a shard may not be consumed by this run; one sentence says why.
        """
        placement, deadline = Placement(), clock() + wait_s
        asked: set[tuple[str, ShardId]] = set()
        for shard in shards:
            while blocker := self._blocking_run(shard, placement):
                if clock() >= deadline:
                    raise dg.Failure(
                        f"Run {blocker} is consuming shard {shard} of {self.key}: wait for it to "
                        "end, or terminate it.",
                        metadata={"run": dg.MetadataValue.dagster_run(blocker)},
                        allow_retries=False,
                    )
                if (blocker, shard) not in asked:
                    asked.add((blocker, shard))
                    log(f"Waiting for run {blocker}, which is consuming shard {shard}.")
                    # A run that follows its shards would keep this one for as long as it lives.
                    self.instance.add_run_tags(blocker, {f"{LET_GO_TAG}{shard}": self.run})
                sleep(LOOK_AGAIN_S)
        return placement

    def _blocking_run(self, shard: ShardId, placement: Placement) -> str:
        """Place one shard, or return the live run that has it open."""
        store = self.deployment.store()
        address = instance_address(self.instance)
        for _ in range(LOOKS_MAX):
            snapshot = planning_snapshot(store, self.key)
            served = self.deployment.served(snapshot.nodes, address)
            standing = standing_of(
                snapshot, shard, served=served, address=address, wanted=self.wanted
            )
            match standing:
                case Refused(sentence):
                    raise dg.Failure(sentence, allow_retries=False)
                case Finished():
                    placement.finished.add(shard)
                    return ""
                case MayClaim():
                    # Win or lose, the next look shows who holds the shard.
                    claim_for_run(store, self.key, shard, standing, run=self.run)
                case MayConsume(node, incarnation, ""):
                    placement.nodes[shard] = node
                    placement.incarnations[node] = incarnation
                    return ""
                case MayConsume(node, _, open_run):
                    if not ended_runs(self.instance, [open_run]):
                        return open_run
                    fresh = str(uuid.uuid4())
                    close_ended_tenure(store, self.key, shard, node, ended=open_run, closing=fresh)
        raise dg.Failure(
            f"Shard {shard} of {self.key} changed hands {LOOKS_MAX} times while this run looked: "
            "materialize it again.",
            allow_retries=False,
        )
