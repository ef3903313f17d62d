"""Where a client begins to read a shard that it has opened, and where it goes on after a gap."""

from __future__ import annotations

from dagster_leasehold.lease_store.client.feed import ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.lease_store.group_rows import GapPolicy
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules import starting_point
from dagster_leasehold.lease_store.rules.cursors import is_before
from dagster_leasehold.lease_store.rules.gap_policy import judged_gap, position_behind
from dagster_leasehold.lease_store.rules.refusals import gap_held


def starting_cursor(
    member: GroupMember,
    feed: ShardFeed,
    shard: ShardId,
    opened: Opened,
    begin: starting_point.Bootstrap | None,
) -> str:
    """Return the bootstrap; else the stored checkpoint; else the group's initial position.

    A bootstrap cursor outside what the shard holds is clamped, and the difference recorded as a
    gap. The start is in the store when this returns:

    1. A client begins at the log's end, is given records, and dies before it confirms them.
    2. The log has grown. Were nothing stored, its successor would begin at the new end.

    Raises:
        LeaseLost: the tenure ended meanwhile.
        StoreError: the start could not be stored: nothing may be read yet.
    """
    stored = member.persisted(shard)
    if begin is not None:
        if begin.gap:
            member.record_gap(shard, start=begin.start, end=begin.readable, reason=begin.gap)
        elif stored is None:
            member.save_checkpoint(shard, begin.readable, persist=True, tenure=opened.tenure)
        return begin.readable
    if (cursor := starting_point.resumption(stored, opened.intent)) is not None:
        return cursor
    lease = member.lease(shard)
    child = lease is not None and bool(lease.parents)
    position = starting_point.first_position(member.group.initial_position, child=child)
    cursor = feed.first_cursor(shard) if position is None else feed.cursor_at(shard, position)
    member.save_checkpoint(shard, cursor, persist=True, tenure=opened.tenure)
    return cursor


def cursor_after_gap(member: GroupMember, feed: ShardFeed, shard: ShardId, cursor: str) -> str:
    """Return where reading goes on when retention has removed the record at `cursor`.

    The gap is recorded in any case.

    Raises:
        GapHeld: the group holds at gaps, and nobody has accepted this one yet.
        CursorExpired: the log contradicts itself: it begins at the cursor that it calls removed.
        LeaseLost: the tenure ended meanwhile.
    """
    policy = member.group.gap_policy
    behind = feed.cursor_at(shard, position_behind(policy))
    verdict = judged_gap(
        cursor,
        policy=policy,
        behind=feed.clamp(shard, cursor) if is_before(behind, cursor) else behind,
        accepted_end=member.accepted_gap_end(shard, cursor) if policy is GapPolicy.HOLD else None,
        contradiction=f"Shard {shard} begins at {shown(cursor)}, but cannot be read there.",
    )
    reason = f"the log has no record at {cursor} any more"
    member.record_gap(shard, start=cursor, end=verdict.end, reason=reason, skip=verdict.passes)
    if not verdict.passes:
        raise gap_held(member.group.key, shard, cursor, verdict.end)
    return verdict.end
