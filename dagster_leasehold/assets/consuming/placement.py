"""Places a run's shards: determines the node for which the run consumes each shard.

Assets call it before they consume.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from dagster_leasehold.assets.consuming.ownership import (
    CanClaim,
    CanConsume,
    Finished,
    Refused,
    Standing,
    claim_for_run,
    close_ended_tenure,
    standings_of,
)
from dagster_leasehold.assets.consuming.run_requests import RELEASE_TAG
from dagster_leasehold.assets.deployment import Deployment, instance_address
from dagster_leasehold.assets.run_process import ended_runs
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.rebalancing import planning_snapshot

CHECK_AGAIN_S = 1.0
CHECKS_MAX = 20


@dataclass(slots=True)
class Placement:
    """The nodes of a run's shards.

    Attributes:
        nodes: the node that holds each shard that the run can consume.
        finished: the shards whose records were all consumed.
        refused: the reason for each shard that the run cannot consume.
    """

    nodes: dict[ShardId, NodeName] = field(default_factory=dict)
    incarnations: dict[NodeName, str] = field(default_factory=dict)
    finished: set[ShardId] = field(default_factory=set)
    refused: dict[ShardId, str] = field(default_factory=dict)

    def by_node(self) -> dict[NodeName, list[ShardId]]:
        """Return the shards to consume for each node."""
        shards: dict[NodeName, list[ShardId]] = {}
        for shard, node in self.nodes.items():
            shards.setdefault(node, []).append(shard)
        return shards


@dataclass(frozen=True, slots=True)
class Placer:
    """Determines the node for which one run consumes each of its shards.

    Attributes:
        target: the node that the launcher named, or None for any holder.
    """

    instance: dg.DagsterInstance
    key: GroupKey
    deployment: Deployment
    run: str
    target: str | None

    def portions(self, shards: Sequence[ShardId], size: int) -> Iterator[Sequence[ShardId]]:
        """Yield the shards in portions, grouped by node where possible."""
        snapshot = self.deployment.store().snapshot(self.key)
        holders = {row.shard: row.consumer_owner or "" for row in snapshot.shards}
        queue = sorted(shards, key=lambda shard: holders.get(shard, ""))
        for first in range(0, len(queue), size):
            yield queue[first : first + size]

    def place(
        self,
        shards: Sequence[ShardId],
        *,
        wait_s: float,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Placement:
        """Place each shard, and claim the unassigned ones.

        If another run has a shard open, request it from that run and wait, for at most `wait_s`
        seconds in total. If that run has ended, close its tenure.
        """
        placement, deadline = Placement(), clock() + wait_s
        requested: set[tuple[ShardId, str]] = set()
        open_by = self._check(shards, placement)
        while open_by and clock() < deadline:
            self._request([each for each in open_by.items() if each not in requested], log)
            requested |= open_by.items()
            sleep(CHECK_AGAIN_S)
            open_by = self._check(list(open_by), placement)
        for shard, blocker in open_by.items():
            placement.refused[shard] = (
                f"Run {blocker} is consuming shard {shard} of {self.key}: wait for it to end, or "
                "terminate it."
            )
        return placement

    def _request(self, open_by: Sequence[tuple[ShardId, str]], log: Callable[[str], None]) -> None:
        """Request shards from the runs that have them open, by tags of these runs."""
        tags: dict[str, dict[str, str]] = {}
        for shard, blocker in open_by:
            tags.setdefault(blocker, {})[f"{RELEASE_TAG}{shard}"] = self.run
        for blocker, requests in tags.items():
            first, *more = (tag.removeprefix(RELEASE_TAG) for tag in requests)
            others = f" and {len(more)} more" if more else ""
            log(f"Waiting for run {blocker}, which is consuming shard {first}{others}.")
            self.instance.add_run_tags(blocker, requests)

    def _check(self, shards: Sequence[ShardId], placement: Placement) -> dict[ShardId, str]:
        """Place shards; return the live run of each shard that another run has open."""
        store, address = self.deployment.store(), instance_address(self.instance)
        open_by: dict[ShardId, str] = {}
        for _ in range(CHECKS_MAX):
            snapshot = planning_snapshot(store, self.key)
            served = self.deployment.served(snapshot.nodes, address)
            standings = standings_of(
                snapshot, shards, served=served, address=address, target=self.target
            )
            open_by |= self._settle(standings, placement)
            claims = {s: each for s, each in standings.items() if isinstance(each, CanClaim)}
            if claims:
                claim_for_run(store, self.key, claims, run=self.run)
            resolved = placement.nodes.keys() | placement.finished | placement.refused.keys()
            shards = [shard for shard in shards if shard not in resolved | open_by.keys()]
            if not shards:
                return open_by
        for shard in shards:
            placement.refused[shard] = (
                f"Shard {shard} of {self.key} moved between nodes during {CHECKS_MAX} checks of "
                "this run: materialize it again."
            )
        return open_by

    def _settle(
        self, standings: Mapping[ShardId, Standing], placement: Placement
    ) -> dict[ShardId, str]:
        """Record final standings, and close ended tenures; return the shards of live runs."""
        runs = {each.open_run for each in standings.values() if isinstance(each, CanConsume)}
        ended = ended_runs(self.instance, runs - {""})
        open_by: dict[ShardId, str] = {}
        for shard, standing in standings.items():
            match standing:
                case Refused(sentence):
                    placement.refused[shard] = sentence
                case Finished():
                    placement.finished.add(shard)
                case CanConsume(node, incarnation, ""):
                    placement.nodes[shard] = node
                    placement.incarnations[node] = incarnation
                case CanConsume(node, _, run) if run in ended:
                    store, closing = self.deployment.store(), str(uuid.uuid4())
                    close_ended_tenure(store, self.key, shard, node, ended=run, closing=closing)
                case CanConsume(_, _, run):
                    open_by[shard] = run
                case CanClaim():
                    pass  # claimed with the others
        return open_by
