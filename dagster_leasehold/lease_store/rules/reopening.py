"""Pure rules for forced checkpoints: the affected batches and shards.

An earlier checkpoint withdraws the batches after it in the same transaction, so that each record is
committed once. It must be between two batches, because a batch is withdrawn as a whole. It reopens
a finished shard, which also affects its descendants.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce

from dagster_leasehold.lease_store.errors import CheckpointRefused, shown
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.rules import withdrawal
from dagster_leasehold.lease_store.rules.ledger import check_place
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.transitions import Step, forced, released, sent_back
from dagster_leasehold.lease_store.shard_rows import ShardLease

SHARDS_NAMED_MAX = 8


class Reopening(StrEnum):
    """The choice for descendants of a reopened shard that were already read.

    `refuse` refuses the forced checkpoint. `cascade` reads them again from their beginnings; in an
    ordered group, they wait for the reopened shard. `accept` lets them continue out of order.
    """

    REFUSE = "refuse"
    CASCADE = "cascade"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Forcing:
    """The effects of a forced checkpoint.

    Attributes:
        steps: the rows to write, the shard's own first; empty if nothing changes.
        marks: journal entries that precede the entries of the steps.
        withdrawn: the numbers of the withdrawn batches of each shard.
    """

    steps: tuple[Step, ...]
    marks: tuple[Note, ...]
    withdrawn: Mapping[ShardId, range]

    def bootstrapped(self, cursor: str) -> Forcing:
        """Return the same effects, with the bootstrap cursor in the shard's row."""
        step, *others = self.steps
        marked = replace(step, after=replace(step.after, bootstrap=cursor))
        return replace(self, steps=(marked, *others))


def concerned(shards: Mapping[ShardId, ShardLease], shard: ShardId) -> list[ShardId]:
    """Return the shard and, if it is over, its descendants, nearest first."""
    family = [shard]
    if shards[shard].state is not ShardState.OVER:
        return family
    for parent in family:
        children = (row.shard for row in shards.values() if parent in row.parents)
        family += sorted(child for child in children if child not in family)
    return family


def force(
    rows: Sequence[ShardLease],
    ledgers: Mapping[ShardId, withdrawal.Ledger],
    cursor: str,
    *,
    key: GroupKey,
    ordered: bool,
    members: Collection[NodeName],
    reason: str,
    reopen: Reopening,
    begins: Mapping[ShardId, str],
) -> Forcing:
    """Return the effects of forcing the checkpoint of `rows[0]` to `cursor`.

    Forcing a finished shard to its end changes nothing.

    Args:
        rows: the rows of the `concerned` shards, in the same order.
        ledgers: their committed batches.
        cursor: the new checkpoint.
        reopen: the caller's choice for descendants.
        begins: the beginning of committed output, for shards with expired output.

    Raises:
        CheckpointRefused: the cursor cannot be ordered or is inside a batch, descendants were read
            and `reopen` refuses that, or output to be read again has expired.
    """
    row, descendants = rows[0], rows[1:]
    if row.state is ShardState.OVER and cursor == row.check_point:
        return Forcing((), (), {})
    check_place(key, row.shard, cursor)
    begin = begins.get(row.shard)
    border = withdrawal.first_withdrawn(row, ledgers[row.shard], cursor, key=key, begin=begin)
    borders = {row.shard: border}
    read = [each for each in descendants if _consumed(each, ledgers[each.shard])]
    if read and reopen is Reopening.REFUSE:
        raise _descendants_read(key, row.shard, [each.shard for each in read])
    resets = read if reopen is Reopening.CASCADE else []
    for each in resets:
        if each.shard in begins:
            raise CheckpointRefused(
                f"Shard {shown(each.shard)} of group {key} cannot be read again with shard "
                f"{shown(row.shard)}: its first committed output has expired, and would be "
                "committed a second time. Reopen with accept to read shard "
                f"{shown(row.shard)} alone."
            )
    borders |= {each.shard: withdrawal.first_since(ledgers[each.shard], 0) for each in resets}
    withdrawn: dict[ShardId, range] = {}
    whys: dict[ShardId, str] = {}
    for shard, border in borders.items():
        why = reason if shard == row.shard else f"{row.shard} was reopened: {reason}"
        last = withdrawal.last_before(ledgers[shard])
        if border is not None and last is not None:
            withdrawn[shard] = range(border.sequence, last.sequence + 1)
            why += f"; batches {border.sequence} to {last.last} are withdrawn"
        whys[shard] = why
    steps = [forced(row, cursor, members, whys[row.shard])]
    if reopen is Reopening.ACCEPT:
        marks = [_mark(child, row.shard, cursor, reason) for child in descendants]
        direct = [row.shard in child.parents for child in descendants]
        choices = [mark for mark, near in zip(marks, direct, strict=True) if near and mark]
        return Forcing(tuple(steps), tuple(choices), withdrawn)
    for each in descendants:
        step = _reset(each, members, whys.get(each.shard), row.shard, ordered)
        steps += [step] if step else []
    return Forcing(tuple(steps), (), withdrawn)


def _descendants_read(
    key: GroupKey, shard: ShardId, descendants: Sequence[ShardId]
) -> CheckpointRefused:
    names, more = ", ".join(descendants[:SHARDS_NAMED_MAX]), len(descendants) - SHARDS_NAMED_MAX
    return CheckpointRefused(
        f"Shard {shown(shard)} of group {key} is finished, and its descendants were read "
        f"({names}{f' and {more} more' if more > 0 else ''}). Reopen it with cascade to read them "
        "again too, or with accept to read only this shard, out of order."
    )


def _consumed(row: ShardLease, ledger: withdrawal.Ledger) -> bool:
    over = row.state is ShardState.OVER
    begun = over or row.check_point is not None or bool(row.consumer_run)
    return begun or withdrawal.last_before(ledger) is not None


def _mark(child: ShardLease, parent: ShardId, cursor: str, reason: str) -> Note | None:
    """Return the journal entry of a child that continues while its parent is read again."""
    if child.state is ShardState.WAIT:
        return None
    return Note(
        kind="accept",
        reason=f"continues although its parent {parent} was reopened: {reason}",
        shard=child.shard,
        from_owner=child.consumer_owner,
        to_owner=child.lease_owner,
        epoch=child.consumer_epoch,
        check_point=cursor,
        facts={"parent": parent},
    )


def _reset(
    row: ShardLease, members: Collection[NodeName], why: str | None, parent: ShardId, ordered: bool
) -> Step | None:
    """Let a descendant wait in an ordered group; with `why`, restart it as well."""
    if not ordered:
        return forced(row, None, members, why) if why else None
    steps: list[Step] = []
    reason = f"its parent {parent} was reopened"
    if parent not in row.parents:
        reason = f"{parent}, an ancestor of it, was reopened"
    if (step := released(row, reason)) is not None:
        steps.append(step)
        row = step.after
    if why:
        steps.append(forced(row, None, members, why))
        row = steps[-1].after
    if row.state is not ShardState.WAIT:
        steps.append(sent_back(row, reason))
    return reduce(Step.then, steps) if steps else None
