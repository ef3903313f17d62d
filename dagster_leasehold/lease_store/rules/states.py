"""The states of a shard within a group, and the only edges between them.

| edge | from                     | to            | when                                           |
|------|--------------------------|---------------|------------------------------------------------|
| 1    | (new)                    | wait          | first seen, group ordered, a parent unfinished |
| 1    | (new)                    | not_alloc     | first seen otherwise                           |
| 2    | wait                     | not_alloc     | all parents over, or group no longer ordered   |
| 3    | not_alloc                | already_alloc | claimed                                        |
| 4    | already_alloc            | not_alloc     | the holder lapsed or left                      |
| 5    | already_alloc            | transfer      | the plan assigns it to another live node       |
| 6    | transfer                 | already_alloc | the holder released it, or the next died       |
| 7    | over                     | not_alloc     | a forced checkpoint reopened it                |
| 8    | already_alloc, transfer  | over          | a read-only shard's checkpoint reached its end |
| 9    | transfer                 | not_alloc     | the holder lapsed during the transfer          |
| 10   | not_alloc                | wait          | a parent was reopened, so it waits again       |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Self


class ShardState(StrEnum):
    """The state of a shard; the values of the `state` column.

    Attributes:
        held: True if a node can consume a shard in this state.
        consumable: True if a shard in this state counts in the nodes' shares.
    """

    _value_: str
    held: bool
    consumable: bool

    def __new__(cls, value: str, held: bool, consumable: bool) -> Self:
        """Create a state from its row below."""
        state = str.__new__(cls, value)
        state._value_ = value
        state.held, state.consumable = held, consumable
        return state

    WAIT = "wait", False, False
    NOT_ALLOC = "not_alloc", False, True
    ALREADY_ALLOC = "already_alloc", True, True
    TRANSFER = "transfer", True, True
    OVER = "over", False, False


EDGES: dict[tuple[ShardState | None, ShardState], int] = {
    (None, ShardState.WAIT): 1,
    (None, ShardState.NOT_ALLOC): 1,
    (ShardState.WAIT, ShardState.NOT_ALLOC): 2,
    (ShardState.NOT_ALLOC, ShardState.ALREADY_ALLOC): 3,
    (ShardState.ALREADY_ALLOC, ShardState.NOT_ALLOC): 4,
    (ShardState.ALREADY_ALLOC, ShardState.TRANSFER): 5,
    (ShardState.TRANSFER, ShardState.ALREADY_ALLOC): 6,
    (ShardState.OVER, ShardState.NOT_ALLOC): 7,
    (ShardState.ALREADY_ALLOC, ShardState.OVER): 8,
    (ShardState.TRANSFER, ShardState.OVER): 8,
    (ShardState.TRANSFER, ShardState.NOT_ALLOC): 9,
    (ShardState.NOT_ALLOC, ShardState.WAIT): 10,
}


def first_state(
    *,
    ordered: bool,
    parents: Collection[str],
    states: Mapping[str, ShardState],
    removed: Collection[str] = (),
) -> ShardState:
    """Edge 1: return the state of a shard that is listed for the first time.

    `states` has the states of the group's shards and of the other listed shards. A parent that is
    missing there can be listed later, so its child waits:

    1. A merge is listed with one of its two parents. A later listing has the other one.
    2. The listed parent is over. If the missing one counted as removed, the child would start.
    3. The late parent would then be read after its child, although its records are earlier.

    The child does not wait for a `removed` parent that this group never had: no run can finish it.
    """
    if not ordered:
        return ShardState.NOT_ALLOC
    unfinished = any(
        states[parent] is not ShardState.OVER if parent in states else parent not in removed
        for parent in parents
    )
    return ShardState.WAIT if unfinished else ShardState.NOT_ALLOC


def may_start(
    *,
    ordered: bool,
    parents: Collection[str],
    states: Mapping[str, ShardState],
    removed: Collection[str] = (),
) -> bool:
    """Edge 2: return True if a waiting shard can be claimed now."""
    begins = first_state(ordered=ordered, parents=parents, states=states, removed=removed)
    return begins is ShardState.NOT_ALLOC
