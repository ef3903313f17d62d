"""Where reading of a shard begins once it is open, and where it goes on after a gap."""

from __future__ import annotations

from dagster_leasehold.lease_store.client.feed import ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.errors import CursorExpired, GapHeld, shown
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened

BEGIN, END = "begin", "end"


def starting_cursor(
    member: GroupMember,
    feed: ShardFeed,
    shard: ShardId,
    opened: Opened,
    bootstrap: str | None = None,
) -> str:
    """`bootstrap`; else the stored checkpoint; else the group's initial position.

    Children of a split or merge always start at the first record that they ever had: what a time
    or `end` would skip was never read under their parents either, and what retention has removed
    of it is a gap, as it is behind any checkpoint. A bootstrap cursor outside what the shard holds
    is clamped, and the difference recorded as a gap.

    The start is in the store when this returns:

    1. A client begins at the log's end, is given records, and dies before it confirms them.
    2. The log has grown. Were nothing stored, its successor would begin at the new end.

    Raises:
        CursorInvalid: `bootstrap` is no cursor of this shard.
        LeaseLost: the tenure ended meanwhile.
        StoreError: the start could not be stored: nothing may be read yet.
    """
    stored = member.persisted(shard)
    if bootstrap is not None:
        readable = feed.clamp(shard, bootstrap)
        if readable != bootstrap:
            reason = f"the log has no record at {bootstrap}: reading begins at {readable}"
            member.record_gap(shard, start=bootstrap, end=readable, reason=reason)
        elif stored is None:
            member.save_checkpoint(shard, readable, persist=True, tenure=opened.tenure)
        return readable
    if stored is not None:
        return stored
    if opened.intent is not None:
        # A run has begun here: what it intended keeps its start in the store.
        return opened.intent.start
    lease = member.lease(shard)
    child = lease is not None and bool(lease.parents)
    position = member.group.initial_position
    cursor = feed.first_cursor(shard) if child else feed.cursor_at(shard, position)
    member.save_checkpoint(shard, cursor, persist=True, tenure=opened.tenure)
    return cursor


def cursor_after_gap(member: GroupMember, feed: ShardFeed, shard: ShardId, cursor: str) -> str:
    """Where reading goes on when retention has removed the record at `cursor`.

    The group's policy decides, as it does for runs; the gap is recorded in any case.

    Raises:
        GapHeld: the group holds at gaps, and nobody has accepted this one yet.
        CursorExpired: the log contradicts itself: it begins at what it calls removed.
        LeaseLost: the tenure ended meanwhile.
    """
    policy = member.group.gap_policy
    target = feed.cursor_at(shard, END if policy is GapPolicy.END else BEGIN)
    reason = f"the log has no record at {cursor} any more"
    if target == cursor:
        raise CursorExpired(f"Shard {shard} begins at {shown(cursor)}, but cannot be read there.")
    if policy is GapPolicy.HOLD:
        accepted = member.accepted_gap_end(shard, cursor)
        if accepted is None:
            member.record_gap(shard, start=cursor, end=target, reason=reason, skip=False)
            raise GapHeld(
                f"The records from {cursor} to {target} of shard {shard} of {member.group.key} "
                "were removed before they were read, and the group holds at gaps: accept the loss "
                f"with `leasehold gap ack {member.group.key.stream} {shard}`, or restore the log."
            )
        target = accepted
    member.record_gap(shard, start=cursor, end=target, reason=reason)
    return target
