"""`leasehold simulate`: a group in simulated time, with changes of its nodes and shards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Annotated

import typer

from dagster_leasehold.lease_store.errors import InvalidSetting, shown
from dagster_leasehold.lease_store.group_rows import (
    BEAT_FRACTION_MAX,
    TIMEOUT_DEFAULT_S,
    AssignmentMode,
    Group,
    Node,
    Timing,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.rules.planning import fewest_moves, orphans, plan
from dagster_leasehold.lease_store.shard_rows import ShardListing
from dagster_leasehold.orchestration.commands.options import Json
from dagster_leasehold.orchestration.presentation import show_json, show_table

NODES_MAX, SHARDS_MAX = 1_000, 100_000
TICK_S = 5.0
TICKS_MAX = 10_000
CHANGES = ("join", "leave", "crash", "split", "merge")
_CHANGE = re.compile(rf"({'|'.join(CHANGES)})(?::([1-9]\d{{0,4}}))?", re.ASCII)
_KEY = GroupKey.parse("simulated", "simulated")


@dataclass(frozen=True, slots=True)
class Result:
    """A group after a change, once no shard moves.

    Attributes:
        change: the change, as the user wrote it; `start` for the first nodes.
        moves_minimum: the fewest changes of owner that any plan needs.
        seconds: the simulated time from the change until the last move.
        ownerless_s: the longest time that a shard from before the change had no live owner.
        counts: shards per node, largest first.
    """

    change: str
    nodes: int
    shards: int
    moves: int
    moves_minimum: int
    seconds: float
    ownerless_s: float
    counts: list[int]


class SimulatedGroup:
    """A group in the in-memory store, with one `Rebalancer` per node.

    Runs are not simulated, so transfers do not wait for holders.
    """

    def __init__(
        self, nodes: int, shards: int, mode: AssignmentMode, *, ordered: bool, timeout_s: float
    ) -> None:
        for name, value, least, most in (
            ("--nodes", nodes, 1, NODES_MAX),
            ("--shards", shards, 0, SHARDS_MAX),
        ):
            if not least <= value <= most:
                raise InvalidSetting(f"{name} is {value}: use a number from {least} to {most}.")
        self._timing = Timing(timeout_s, timeout_s * BEAT_FRACTION_MAX)
        # A sensor ticks every 5 s, and several times within the timeout.
        self._tick_s = min(TICK_S, timeout_s / 4)
        self._now = 0.0
        self._store = MemoryStore()
        self._store.create_group(Group(_KEY, assignment=mode, ordered=ordered, timeout_s=timeout_s))
        self._mode = mode
        self._nodes: dict[NodeName, Rebalancer] = {}
        self._join_count = 0
        self._first_nodes = nodes
        self._listing = [ShardListing(ShardId(str(number))) for number in range(shards)]
        self._shard_count = shards

    def start(self) -> Result:
        """Let the first nodes join, and share the shards."""
        self._join(self._first_nodes)
        self._tick()
        return self._settle("start", self._list)

    def change(self, text: str) -> Result:
        """Apply a change, given as `KIND[:COUNT]`, and tick until no shard moves."""
        match = _CHANGE.fullmatch(text)
        if match is None:
            raise InvalidSetting(
                f"{shown(text)} is not a change: use KIND[:COUNT] with one of the kinds "
                f"{', '.join(CHANGES)}, for example crash:2."
            )
        kind, count = match[1], int(match[2] or 1)
        if kind == "join":
            return self._settle(text, lambda: self._join(count))
        if kind in ("leave", "crash"):
            if count >= len(self._nodes):
                raise InvalidSetting(
                    f"{shown(text)} would remove all nodes: the group has {len(self._nodes)}."
                )
            return self._settle(text, lambda: self._lose(count, leave=kind == "leave"))
        return self._settle(text, lambda: self._reshard(count, parents=1 + (kind == "merge")))

    def _join(self, count: int) -> None:
        if len(self._nodes) + count > NODES_MAX:
            raise InvalidSetting(f"A simulated group has at most {NODES_MAX} nodes.")
        for _ in range(count):
            name = NodeName(f"node-{self._join_count}")
            self._nodes[name] = Rebalancer(
                self._store,
                _KEY,
                serves=(name,),
                timing=self._timing,
                observer=name,
                incarnation_of=lambda name: f"{name}.1",
                clock=lambda: self._now,
                settings={name: self._assignment(name, self._join_count)},
            )
            self._join_count += 1

    def _assignment(self, name: NodeName, number: int) -> Node:
        """Return a node's settings, with its number for `modulo` or its shards for `pinned`."""
        if self._mode is AssignmentMode.MODULO:
            return Node(name, 0, "", source_count=self._first_nodes, node_id=number)
        if self._mode is AssignmentMode.PINNED:
            shards = (row.shard for row in self._listing[number :: self._first_nodes])
            return Node(name, 0, "", pinned=dict.fromkeys(shards))
        return Node(name, 0, "")

    def _lose(self, count: int, *, leave: bool) -> None:
        for name in list(self._nodes)[:count]:
            rebalancer = self._nodes.pop(name)
            if leave:
                rebalancer.leave()

    def _reshard(self, count: int, *, parents: int) -> None:
        """Split shards in two or merge pairs of shards, and finish the parents."""
        owners = self._live_owners()
        ready = [row for row in self._listing if row.shard in owners]
        if len(ready) < count * parents:
            raise InvalidSetting(
                f"{count * parents} shards with an owner are needed, but there are {len(ready)}."
            )
        for place in range(count):
            parent_rows = ready[place * parents : (place + 1) * parents]
            for row in parent_rows:
                self._listing[self._listing.index(row)] = replace(row, read_only=True)
            for _ in range(3 - parents):
                names = tuple(row.shard for row in parent_rows)
                self._listing.append(ShardListing(ShardId(str(self._shard_count)), parents=names))
                self._shard_count += 1
        self._list()
        for row in ready[: count * parents]:
            opened = self._store.open_tenure(_KEY, row.shard, owners[row.shard], "simulated")
            if isinstance(opened, Opened):
                self._store.finish_empty(opened.tenure, "1")

    def _list(self) -> None:
        self._store.sync_shards(_KEY, self._listing, observer="simulate")

    def _tick(self) -> None:
        self._now += self._tick_s
        for rebalancer in self._nodes.values():
            rebalancer.tick()

    def _live_owners(self) -> dict[ShardId, NodeName]:
        owners: dict[ShardId, NodeName] = {}
        for row in self._store.snapshot(_KEY).shards:
            owner = row.consumer_owner
            if row.state.held and owner is not None and owner in self._nodes:
                owners[row.shard] = owner
        return owners

    def _settle(self, change: str, apply: Callable[[], None]) -> Result:
        before, began = self._live_owners(), self._now
        apply()
        last, last_seen = self._live_owners(), dict.fromkeys(before, began)
        latest, moves, ownerless_s = dict(before), 0, 0.0
        for _ in range(TICKS_MAX):
            self._tick()
            owners = self._live_owners()
            moves += sum(latest.get(shard) != owner for shard, owner in owners.items())
            latest |= owners
            for shard in owners.keys() - last.keys():
                ownerless_s = max(ownerless_s, self._now - last_seen.get(shard, self._now))
            last, last_seen = owners, last_seen | dict.fromkeys(owners, self._now)
            if self._is_settled():
                break
        snapshot = self._store.snapshot(_KEY)
        return Result(
            change=change,
            nodes=len(self._nodes),
            shards=sum(row.state.consumable for row in snapshot.shards),
            moves=moves,
            moves_minimum=fewest_moves(snapshot, live=self._nodes.keys(), owners=before),
            seconds=self._now - began,
            ownerless_s=ownerless_s,
            counts=sorted((Counter(last.values())[name] for name in self._nodes), reverse=True),
        )

    def _is_settled(self) -> bool:
        snapshot = self._store.snapshot(_KEY)
        members = {node.name for node in snapshot.nodes if node.member}
        if members != self._nodes.keys() or orphans(snapshot):
            return False
        return not plan(snapshot, live=self._nodes.keys()).actions


def simulate(  # noqa: PLR0917
    nodes: Annotated[int, typer.Option(help="Number of nodes at the start.")] = 3,
    shards: Annotated[int, typer.Option(help="Number of shards at the start.")] = 8,
    mode: Annotated[
        AssignmentMode, typer.Option(help="How the group assigns shards.")
    ] = AssignmentMode.BALANCED,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Children of a split or merge wait for their parents.")
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:COUNT]",
            help="COUNT nodes join, leave or crash, or COUNT shards split or merge; repeatable.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="The lease timeout.")
    ] = TIMEOUT_DEFAULT_S,
    as_json: Json = False,
) -> None:
    """Simulate changes of nodes and shards, and show the moves and shares after each.

    Time is simulated, and no records are consumed.
    """
    group = SimulatedGroup(nodes, shards, mode, ordered=ordered, timeout_s=timeout)
    results = [group.start(), *(group.change(text) for text in change or ())]
    if as_json:
        show_json([asdict(each) for each in results])
        return
    show_table(
        f"{nodes:,} nodes and {shards:,} shards, lease timeout {timeout:g} s",
        "change, >nodes, >shards, >moves, >fewest possible, >settled after s, "
        ">without owner s, shards per node",
        # The columns are the fields of a result.
        ((*astuple(each)[:-1], _shares(each.counts)) for each in results),
    )


def _shares(counts: Sequence[int]) -> str:
    """Return shares such as `67 on 3, 66 on 2`: 3 nodes have 67 shards each, and 2 have 66."""
    nodes = Counter(counts)
    return ", ".join(f"{count} on {nodes[count]}" for count in sorted(nodes, reverse=True))
