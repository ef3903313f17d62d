"""The role for consumer groups and their nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from dagster_leasehold.lease_store.draining import Draining, draining_of
from dagster_leasehold.lease_store.errors import GroupExists, GroupInUse, GroupLimitReached, shown
from dagster_leasehold.lease_store.group_rows import (
    GROUPS_PER_STREAM_MAX,
    Group,
    Node,
    Pulse,
    Snapshot,
    rival_of,
)
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId, StreamName
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.ledger_rows import BatchState
from dagster_leasehold.lease_store.outcomes import (
    Beaten,
    BeatRefused,
    Changed,
    NameTaken,
    Registered,
    Stale,
)
from dagster_leasehold.lease_store.roles.operations import Operations, Rows
from dagster_leasehold.lease_store.rules.assignment_plan import check_member
from dagster_leasehold.lease_store.rules.lineage import UNORDERED, freed_to_start
from dagster_leasehold.lease_store.rules.transitions import departed, settings_note
from dagster_leasehold.lease_store.shard_rows import Progress, ShardLease

SNAPSHOT_ATTEMPTS = 3


class Groups(Operations):
    """The operations on groups and nodes."""

    # -- groups ---------------------------------------------------------------------------------

    def create_group(self, group: Group) -> None:
        """Insert a group; raise GroupExists or GroupLimitReached."""
        key, new = group.key, replace(group, generation=0)

        def work(rows: Rows) -> None:
            # Locked, so that two concurrent calls cannot both find room for one more group.
            siblings = rows.groups(key.stream, lock=True)
            if any(sibling.key == key for sibling in siblings):
                raise GroupExists(
                    f"Stream {shown(key.stream)} already has a consumer group {shown(key.group)}. "
                    "Choose another name, or update that group."
                )
            if len(siblings) >= GROUPS_PER_STREAM_MAX:
                raise GroupLimitReached(
                    f"Stream {shown(key.stream)} already has {len(siblings)} consumer groups, the "
                    "most allowed. Delete one first."
                )
            rows.add_group(new)

        def mark(rows: Rows) -> bool:
            return new in rows.groups(key.stream, lock=True)

        self._writing("create_group", key, work, mark=mark)

    def groups(self, stream: StreamName | None = None) -> list[Group]:
        """Return all groups, or a stream's, by stream and name."""
        return self._reading("groups", None, lambda rows: rows.groups(stream))

    def update_group(self, group: Group, *, observer: str) -> Group:
        """Replace a group's settings.

        If the group becomes unordered, its waiting shards are freed (edge 2). If it becomes
        ordered, its shards do not change.
        """

        def work(rows: Rows) -> Group:
            before = rows.group()
            after = replace(group, generation=before.generation)
            rows.change_group(after)
            rows.journal([settings_note(before, group)], observer)
            if before.ordered and not group.ordered:
                freed = freed_to_start(rows.each_shard(), ordered=False, reason=UNORDERED)
                rows.carry_out(freed, observer)
            return after

        return self._changing("update_group", group.key, work)

    def delete_group(self, key: GroupKey, *, force: bool = False) -> None:
        """Remove a group with all its rows; raise GroupInUse if it has members, without `force`."""
        started = False

        def work(rows: Rows) -> None:
            nonlocal started
            if started and key not in (group.key for group in rows.groups(key.stream)):
                return  # An earlier attempt at this call deleted it, and its reply was lost.
            rows.group(lock=True)
            members = rows.members()
            if members and not force:
                raise GroupInUse(
                    f"Group {key} still has live nodes ({', '.join(sorted(members))}). Stop them "
                    "first, or delete it with --force."
                )
            started = True
            rows.delete_group()

        self._writing("delete_group", key, work)

    # -- reads of a whole group -----------------------------------------------------------------

    def pulse(self, key: GroupKey, node: NodeName | None = None) -> Pulse:
        """Return the group and the counters of its nodes, or of one node, in one statement."""
        return self._reading("pulse", key, lambda rows: rows.pulse(node))

    def snapshot(self, key: GroupKey, since: int | None = None) -> Snapshot:
        """Return the group, its nodes and its shards, read in one transaction.

        `since` selects the shards whose listing, state or owner changed after that generation.
        """

        # Each statement reads the state at its own time, so the group is compared before and
        # after. If it changes every time, the last attempt locks it.
        def work(rows: Rows) -> tuple[Group, Iterator[Node], Iterator[ShardLease]]:
            for attempt in range(1, SNAPSHOT_ATTEMPTS + 1):
                last = attempt == SNAPSHOT_ATTEMPTS
                group = rows.group(lock=last)
                nodes = rows.select(Node)
                shards = rows.each_shard() if since is None else rows.changed_shards(since)
                if last or rows.group() == group:
                    return group, nodes, shards
            raise AssertionError("The last attempt returns.")

        group, nodes, shards = self._reading("snapshot", key, work)
        return Snapshot(group, tuple(nodes), tuple(shards))

    def draining(self, key: GroupKey) -> Draining:
        """Return the work in progress on each shard; none can begin after a committed pause.

        All rows are locked, so that openings that began before the pause are included.
        """

        def work(rows: Rows) -> Draining:
            shards = list(rows.each_shard(lock=True))
            newest = rows.newest([row.shard for row in shards]).values()
            intents = [batch for batch in newest if batch.state is BatchState.INTENT]
            return draining_of(rows.group(), shards, intents)

        return self._reading("draining", key, work)

    def progress(
        self, key: GroupKey, nodes: Collection[NodeName], shards: Collection[ShardId] | None = None
    ) -> dict[ShardId, Progress]:
        """Return the progress of all or some shards that `nodes` can consume, in one statement."""

        def work(rows: Rows) -> Iterable[Progress]:
            if shards is None:
                return rows.progress(nodes)
            leases = rows.shards(shards).values()
            return [Progress.of(row) for row in leases if row.consumer_owner in nodes]

        return {row.shard: row for row in self._reading("progress", key, work)}

    # -- nodes ----------------------------------------------------------------------------------

    def register(
        self, key: GroupKey, node: Node, *, observer: str, displaced_lease_id: int | None = None
    ) -> Registered | NameTaken:
        """Take a node's name under `node.incarnation`.

        Another incarnation loses the name, and its shards, only if its counter is still
        `displaced_lease_id`. The caller has observed this counter unchanged for longer than T.

        Raises:
            AssignmentConflict: the group assigns by modulo, and the settings contradict another
                member's. It is checked under a lock: of two nodes that join at once one is refused.
        """

        def returned(rows: Rows) -> Registered | None:
            """Register a member with unchanged settings: only increment its counter."""
            rows.group()
            row = _locked(rows, node.name)
            entry = _registration(row, node, None)
            if row is None or isinstance(entry, NameTaken) or entry[1]:
                return rows.abandon(None)
            rows.write(entry[0], lease_id=row.lease_id)
            return Registered(entry[0].lease_id)

        def work(rows: Rows) -> Registered | NameTaken:
            before = _locked(rows, node.name)
            entry = _registration(before, node, displaced_lease_id)
            if isinstance(entry, NameTaken):
                return rows.abandon(entry)
            after, note = entry
            if note:
                check_member(rows.group(), rows.select(Node), node)
            if before is None:
                rows.add(after)
            else:
                if before.member and before.incarnation != node.incarnation:
                    reason = f"displaced by {node.incarnation}: its heartbeats had stopped"
                    _depart(rows, before, kind="evict", reason=reason, observer=observer)
                rows.write(after, lease_id=before.lease_id)
            rows.journal([note] if note else [], observer)
            return Registered(after.lease_id)

        return self._writing("register", key, returned) or self._changing("register", key, work)

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        """Add 1 to the node's counter, if the node still has this incarnation."""
        # After a lost reply the heartbeat is repeated; counting twice is harmless.
        return self._writing("beat", key, lambda rows: rows.beat(node, incarnation))

    def beat_ages(self, key: GroupKey) -> dict[NodeName, float]:
        """Return the seconds since each member's last heartbeat, by the database's own clock.

        They are for people only: after the clock was set back, an age can be negative.
        """
        return self._reading("beat_ages", key, lambda rows: rows.beat_ages())

    def leave(self, key: GroupKey, node: NodeName, incarnation: str) -> Changed | Stale:
        """Release all shards of the node, and its name, in one transaction."""

        def work(rows: Rows) -> Changed | Stale:
            row = _locked(rows, node)
            if row is None or not row.member or row.incarnation != incarnation:
                return rows.abandon(Stale())
            return _depart(rows, row, kind="leave", reason="its node left", observer=str(node))

        return self._changing("leave", key, work)

    def evict(
        self, key: GroupKey, node: NodeName, seen_lease_id: int, *, observer: str, reason: str
    ) -> Changed | Stale:
        """Release all shards of a dead node (edges 4, 6 and 9), if its counter has not moved."""

        def work(rows: Rows) -> Changed | Stale:
            row = _locked(rows, node)
            if row is None or not row.member or row.lease_id != seen_lease_id:
                return rows.abandon(Stale())
            return _depart(rows, row, kind="evict", reason=reason, observer=observer)

        return self._changing("evict", key, work)


def _locked(rows: Rows, node: NodeName) -> Node | None:
    # The lock excludes a heartbeat between this read and the write:
    # 1. The observer finds counter 7 unchanged for T.  2. The node wakes up and beats: 8.
    # 3. The observer evicts. It must read 8 and stop, or wait for the lock and then read it.
    return rows.first(Node, lock=True, name=node)


def _registration(
    before: Node | None, node: Node, displaced_lease_id: int | None
) -> tuple[Node, Note | None] | NameTaken:
    """Return the node's new row, and its journal entry unless only the counter changes.

    The counter is incremented even if the same incarnation registers again, so that observers
    restart their counts.
    """
    after = replace(node, lease_id=before.lease_id + 1 if before else 1)
    rival = rival_of(node.name, node.incarnation, [before] if before else [])
    if rival and rival.lease_id != displaced_lease_id:
        return NameTaken(rival.incarnation, rival.lease_id)
    if before is None or before.incarnation != node.incarnation:
        kind, reason = "join", "joined"
    elif replace(before, lease_id=after.lease_id) != after:
        kind, reason = "resume", "registered again with other settings"
    else:
        return after, None
    return after, Note(kind=kind, reason=reason, to_owner=node.name, run=node.incarnation)


def _depart(rows: Rows, row: Node, *, kind: str, reason: str, observer: str) -> Changed:
    rows.write(replace(row, incarnation=""), lease_id=row.lease_id)
    note = Note(kind=kind, reason=reason, from_owner=row.name, run=row.incarnation)
    rows.journal([note], observer)
    # The group's row is locked, so owners cannot change. Tenures can, so the shards are locked.
    shards = rows.shards(rows.shards_of(row.name), lock=True)
    return rows.carry_out(departed(shards.values(), row.name, reason), observer)
