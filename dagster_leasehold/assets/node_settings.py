"""Settings of a node in a group that assigns by modulo or by name, checked at their declaration.

`assignment_plan` later finds conflicts with nodes of other deployments, with the same errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown, suggestion
from dagster_leasehold.lease_store.group_rows import AssignmentMode, Node
from dagster_leasehold.lease_store.identifiers import CURSOR_LENGTH_MAX, NodeName, ShardId
from dagster_leasehold.lease_store.rules.assignment_plan import check_modulo

SOURCE_COUNT_MAX = 1_000_000
_OF_NODES = ("source_count", "node_id", "pinned")
CONTINUE = -1
"""Instead of a bootstrap cursor: continue from the stored checkpoint."""


@dataclass(frozen=True, slots=True)
class Modulo:
    """The node takes the shards whose rank in the full list is `node_id` modulo `source_count`.

    Attributes:
        source_count: the number of nodes in the group; a negative count on all disables the rule.
        node_id: the number of this node, from 0; required unless the count is negative.

    Raises:
        ModuloSettingMissing: a count without an id.
        ModuloIdOutOfRange: the id is not in 0 … count - 1, or the count is 0 or too large.

    Examples:
        >>> nodes = {"east": Modulo(2, 0), "west": Modulo(2, 1)}
        >>> ShardStream(
        ...     "visits", LocalLog("log"), assignment=AssignmentMode.MODULO, nodes=nodes
        ... ).nodes["west"].node_id
        1
    """

    source_count: int
    node_id: int | None = None

    def __post_init__(self) -> None:
        count, remainder = self.source_count, self.node_id
        if count >= 0 and remainder is None:
            raise errors.ModuloSettingMissing(
                f"A source_count of {count} is given without a node_id: give both."
            )
        if not -SOURCE_COUNT_MAX <= count <= SOURCE_COUNT_MAX or count == 0:
            raise errors.ModuloIdOutOfRange(
                f"The source_count is {count}: use the number of nodes, from 1 to "
                f"{SOURCE_COUNT_MAX}, or -1 to switch the rule off."
            )
        if count > 0 and (remainder is None or not 0 <= remainder < count):
            raise errors.ModuloIdOutOfRange(
                f"The node_id is {remainder} with source_count {count}: use one from 0 to "
                f"{count - 1}."
            )


@dataclass(frozen=True, slots=True)
class Pinned:
    """The node takes the shards that it names, and no others.

    Attributes:
        shards: shard id to the cursor where it begins, or -1 to continue from the checkpoint.

    Raises:
        InvalidIdentifier: a shard id does not match the grammar.
        InvalidSetting: a bootstrap cursor is invalid.

    Examples:
        >>> Pinned({"0": -1, "1": "25000"}).shards["1"]
        '25000'
    """

    shards: Mapping[str, str | int] = field(hash=False)

    def __post_init__(self) -> None:
        for shard, cursor in self.shards.items():
            _check_cursor(ShardId(shard), cursor)

    @property
    def cursors(self) -> dict[ShardId, str | None]:
        """The bootstrap cursor of each shard, or None to continue, as in `Node.pinned`."""
        return {
            ShardId(shard): None if str(cursor) == str(CONTINUE) else str(cursor)
            for shard, cursor in self.shards.items()
        }


NodeSettings = Modulo | Pinned


def node_settings(given: object) -> NodeSettings:
    """Return a node's settings; convert a mapping.

    The mapping has `source_count` and `node_id`, or `pinned` with a bootstrap cursor by shard.

    Raises:
        InvalidSetting: it has another form, is empty, or mixes two modes.
        ModuloSettingMissing, ModuloIdOutOfRange, InvalidIdentifier: a value is not valid.
    """
    if isinstance(given, Modulo | Pinned):
        return given
    settings: Mapping[object, object] = given if isinstance(given, Mapping) else {}
    for name, value in settings.items():
        if name not in _OF_NODES:
            raise errors.InvalidSetting(
                f"{shown(name)} is not a setting of a node: {suggestion(str(name), _OF_NODES)}"
            )
        if name != "pinned" and (isinstance(value, bool) or not isinstance(value, int)):
            raise errors.InvalidSetting(f"{name} is {shown(value)}: use a whole number.")
    match settings:
        case {"pinned": dict(shards), **others} if not others:
            return Pinned({str(shard): cursor for shard, cursor in shards.items()})
        case {"source_count": int(count), **others} if "pinned" not in others:
            return Modulo(count, settings.get("node_id"))  # pyright: ignore[reportArgumentType]
        case {"node_id": remainder, **others} if not others:
            raise errors.InvalidSetting(
                f"A node_id of {remainder} is given without a source_count: give both."
            )
        case _:
            raise errors.InvalidSetting("Give source_count and node_id, or pinned, and not both.")


def _check_cursor(shard: ShardId, cursor: object) -> None:
    if isinstance(cursor, bool) or not isinstance(cursor, str | int):
        problem = "is neither text nor a whole number"
    elif isinstance(cursor, int) and cursor < CONTINUE:
        problem = "is negative"
    elif not 0 < len(str(cursor).encode()) <= CURSOR_LENGTH_MAX:
        problem = f"is not of 1 to {CURSOR_LENGTH_MAX} bytes"
    else:
        return
    raise errors.InvalidSetting(
        f"The bootstrap cursor {shown(cursor)} of shard {shown(shard)} {problem}: use a cursor of "
        f"the shard, or {CONTINUE} to continue from its checkpoint."
    )


def node_row(name: NodeName, settings: NodeSettings | None, *, address: str = "") -> Node:
    """Return the row that a node with these settings registers, without its incarnation."""
    match settings:
        case Modulo(source_count, node_id):
            return Node(name, 0, "", address, source_count=source_count, node_id=node_id)
        case Pinned():
            return Node(name, 0, "", address, pinned=settings.cursors)
        case None:
            return Node(name, 0, "", address)


def check_settings(assignment: AssignmentMode, nodes: Mapping[str, NodeSettings]) -> None:
    """Check that the nodes' settings match the mode and do not contradict each other.

    Raises:
        InvalidIdentifier: a node's name does not match the grammar.
        InvalidSetting: settings of another mode.
        AssignmentConflict: two nodes contradict each other.
        ShardOccupied: two nodes name the same shard.
    """
    rows = [node_row(NodeName(name), settings) for name, settings in nodes.items()]
    for name, settings in nodes.items():
        pinned = isinstance(settings, Pinned)
        given = AssignmentMode.PINNED if pinned else AssignmentMode.MODULO
        if given is not assignment:
            raise errors.InvalidSetting(
                f"Node {shown(name)} has {given} settings, but the assignment is {assignment}: "
                f"set assignment to {given}, or remove them."
            )
    for place, row in enumerate(rows):
        if assignment is AssignmentMode.MODULO:
            check_modulo(rows[:place], row)
        for other in rows[:place]:
            if both := set(other.pinned or ()) & set(row.pinned or ()):
                raise errors.ShardOccupied(
                    f"Nodes {shown(other.name)} and {shown(row.name)} both name shard "
                    f"{shown(min(both))}: name it on one node only."
                )


def check_served(
    stream: str,
    assignment: AssignmentMode,
    nodes: Mapping[str, NodeSettings],
    served: Sequence[NodeName],
) -> None:
    """Check that a stream's settings match the nodes that a deployment serves.

    Raises:
        InvalidSetting: settings of an unserved node.
        ModuloSettingMissing: the assignment is modulo, and a served node has no settings.
    """
    for name in nodes:
        if name not in served:
            raise errors.InvalidSetting(
                f"Stream {shown(stream)} has settings of node {shown(name)}, which this deployment "
                f"does not serve: it serves {', '.join(served)}."
            )
    for name in served if assignment is AssignmentMode.MODULO else ():
        if name not in nodes:
            raise errors.ModuloSettingMissing(
                f"Stream {shown(stream)} has no source_count and node_id of node {shown(name)}, "
                "but its assignment is modulo: set both, on every node."
            )
