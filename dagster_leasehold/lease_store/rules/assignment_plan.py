"""Values of planning: who has which shard, and a plan made of single moves with their reasons."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dagster_leasehold.lease_store.errors import LeaseholdError
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.shard_rows import ShardLease

SHOWN_SHARDS_MAX = 12
UNSUBSCRIBABLE = "its source lets no consumer subscribe to it now"


@dataclass(frozen=True, slots=True)
class Claim:
    """Edge 3: `node` takes a free shard, if its `lease_id` is still `seen_lease_id`."""

    shard: ShardId
    node: NodeName
    seen_lease_id: int
    reason: str

    @property
    def gains(self) -> NodeName:
        """The node that has one shard more afterwards."""
        return self.node

    def __str__(self) -> str:
        return f"claim {self.shard} for {self.node}: {self.reason}"


@dataclass(frozen=True, slots=True)
class BeginTransfer:
    """Edge 5: a shard starts on its way from its live holder to another node."""

    shard: ShardId
    holder: NodeName
    to: NodeName
    seen_lease_id: int
    reason: str

    @property
    def gains(self) -> NodeName:
        """The node that has one shard more afterwards."""
        return self.to

    def __str__(self) -> str:
        return f"transfer {self.shard} from {self.holder} to {self.to}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Edge 6, back to the holder: the next node shall not have the shard after all."""

    shard: ShardId
    holder: NodeName
    next: NodeName
    seen_lease_id: int
    reason: str

    @property
    def gains(self) -> NodeName:
        """The node that has one shard more afterwards."""
        return self.holder

    def __str__(self) -> str:
        return f"leave {self.shard} with {self.holder} instead of {self.next}: {self.reason}"


Action = Claim | BeginTransfer | CancelTransfer


@dataclass(frozen=True, slots=True)
class Unassigned:
    """A shard that the plan leaves unassigned, or where it should not stay, and why."""

    shard: ShardId
    reason: str

    def __str__(self) -> str:
        return f"{self.shard} is left: {self.reason}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node's assignment settings that cannot be followed; `error` is what to tell its owner."""

    node: NodeName
    error: LeaseholdError

    def __str__(self) -> str:
        return f"{self.node} is refused: {self.error}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares of the nodes, and the single moves that lead there.

    Attributes:
        generation: the generation of the group that was planned for.
        actions: the moves, in the order that they should be tried.
        unassigned: shards that no node can take now.
        counts: shards that count, per node, once every move is done.
        moves: changes of owner that the plan makes, first claims included.
        moves_minimum: the fewest changes of owner that any plan of this mode needs.
        refusals: nodes whose settings contradict the others'.
        summary: one line: how many shards and nodes, and the quota.
        proof: lines that show why no plan with fewer moves exists.
        loads: records per second for each node once every move is done, where shards are weighed.
    """

    generation: int
    actions: tuple[Action, ...] = ()
    unassigned: tuple[Unassigned, ...] = ()
    counts: tuple[tuple[NodeName, int], ...] = ()
    moves: int = 0
    moves_minimum: int = 0
    refusals: tuple[Refusal, ...] = ()
    summary: str = ""
    proof: tuple[str, ...] = ()
    loads: tuple[tuple[NodeName, float], ...] = ()

    @property
    def spread(self) -> int:
        """The difference between the largest and the smallest count; 0 without nodes."""
        shares = [count for _, count in self.counts]
        return max(shares) - min(shares) if shares else 0

    def explain(self) -> list[str]:
        """Explain the plan: each move and why, what is left, and that no smaller plan exists."""
        lines = [self.summary]
        lines += [str(refusal) for refusal in self.refusals]
        lines += [str(action) for action in self.actions]
        lines += [str(shard) for shard in self.unassigned]
        lines += [f"{node} then has a load of {load:g} records/s" for node, load in self.loads]
        least = self.moves_minimum
        # By load, no count proves that fewer moves would do as well.
        bound = f"at least {least} are needed" if self.loads else f"the fewest possible are {least}"
        lines.append(f"{self.moves} changes of owner; {bound}")
        lines += self.proof
        return lines


_DIGITS = re.compile(r"(\d+)", re.ASCII)


@lru_cache(maxsize=200_000)
def rank_key(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sort names as people count: `2` before `10`; total, so that every node sorts alike."""
    parts = tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )
    return parts, name


def listed(shards: tuple[ShardId, ...]) -> str:
    """Name shards for a line of text: all of a few, the first of many."""
    if not shards:
        return "no shard"
    ranked = sorted(shards, key=rank_key)
    named = ", ".join(ranked[:SHOWN_SHARDS_MAX])
    if len(ranked) > SHOWN_SHARDS_MAX:
        return f"{len(ranked)} shards ({named}, …)"
    return f"shards {named}" if len(ranked) > 1 else f"shard {named}"


@dataclass(frozen=True, slots=True)
class Holdings:
    """The shards that count, sorted by what planning can do with them.

    Attributes:
        own: per taker, the shards that are its own now.
        returning: shards in transfer to a node that takes none: they go back to their holder.
        free: unassigned; to be claimed.
        homeless: held by a live node that takes no runs; to be transferred away.
    """

    own: dict[NodeName, list[ShardLease]]
    returning: list[ShardLease]
    free: list[ShardLease]
    homeless: list[ShardLease]


def holdings_of(
    shards: Sequence[ShardLease], takers: Sequence[NodeName], live: Collection[NodeName]
) -> Holdings:
    """Sort shards by their owners: `takers` take runs, `live` nodes are not judged dead."""
    holdings = Holdings({node: [] for node in takers}, [], [], [])
    for lease in sorted(shards, key=lambda lease: rank_key(lease.shard)):
        owner, holder = lease.lease_owner, lease.consumer_owner
        in_transfer = lease.state is ShardState.TRANSFER
        if not lease.state.held or owner is None or holder not in live:
            holdings.free.append(lease)
        elif owner in holdings.own:
            holdings.own[owner].append(lease)
        elif in_transfer and holder is not None and holder in holdings.own:
            holdings.returning.append(lease)
            holdings.own[holder].append(lease)
        elif owner in live:
            holdings.homeless.append(lease)
        else:
            holdings.free.append(lease)
    return holdings
