"""Where reading of a shard begins once it is open."""

from __future__ import annotations

from lease_store.client.feed import ShardFeed
from lease_store.client.group_member import GroupMember
from lease_store.identifiers import ShardId
from lease_store.store import Opened

AT_BEGIN = "begin"


def starting_cursor(
    member: GroupMember,
    feed: ShardFeed,
    shard: ShardId,
    opened: Opened,
    bootstrap: str | None = None,
) -> str:
    """The stored checkpoint; else `bootstrap`; else the group's initial position.

    Children of a split or merge always start at their beginning: what a time or `end` would skip
    was never read under their parents either. A cursor outside what the shard holds is clamped,
    and recorded as a gap.

    Raises:
        CursorInvalid: the cursor is none of this shard.
        LeaseLost: the tenure ended meanwhile.
    """
    cursor = opened.check_point if opened.check_point is not None else bootstrap
    if cursor is None:
        lease = member.lease(shard)
        child = lease is not None and bool(lease.parents)
        return feed.cursor_at(shard, AT_BEGIN if child else member.group.initial_position)
    return clamped_cursor(member, feed, shard, cursor)


def clamped_cursor(member: GroupMember, feed: ShardFeed, shard: ShardId, cursor: str) -> str:
    """`cursor`, or the nearest that can be read, with what lies between recorded as a gap.

    Raises:
        CursorInvalid: the cursor is none of this shard.
        LeaseLost: the tenure ended meanwhile.
    """
    readable = feed.clamp(shard, cursor)
    if readable != cursor:
        member.record_gap(
            shard,
            start=cursor,
            end=readable,
            reason=f"the log has no record at {cursor}: reading goes on at {readable}",
        )
    return readable
