"""Pure rules for forced checkpoints: the batches and shards that one takes back.

Committed output of a shard is each of its records up to the checkpoint once. So a checkpoint that
goes back withdraws the batches behind it, in its own transaction, and only at the border between
two batches: the records of one batch become visible and vanish together. A shard that was over is
reopened by it, which concerns the shards that began after it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce

from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import Note
from dagster_leasehold.lease_store.rules import withdrawal
from dagster_leasehold.lease_store.rules.ledger import check_place
from dagster_leasehold.lease_store.rules.refusals import child_expired, children_consumed
from dagster_leasehold.lease_store.rules.states import ShardState
from dagster_leasehold.lease_store.rules.transitions import Step, forced, released, sent_back
from dagster_leasehold.lease_store.shard_rows import ShardLease


class Reopening(StrEnum):
    """The fate of shards that began after one that is reopened, and were read already.

    `refuse`: nothing is done; `cascade`: they are read again too, each from its beginning, after
    the reopened one where the group is ordered; `accept`: they continue out of order, as recorded.
    """

    REFUSE = "refuse"
    CASCADE = "cascade"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Forcing:
    """All that a forced checkpoint does.

    Attributes:
        steps: the rows to write, that of the shard itself first; none where nothing changes.
        marks: journal entries that come before the steps'.
        withdrawn: for each shard the numbers of the committed batches that are withdrawn, if any.
    """

    steps: tuple[Step, ...]
    marks: tuple[Note, ...]
    withdrawn: Mapping[ShardId, range]

    def bootstrapped(self, cursor: str) -> Forcing:
        """Return the same, with a shard's row that remembers that it was started at this cursor."""
        step, *others = self.steps
        marked = replace(step, after=replace(step.after, bootstrap=cursor))
        return replace(self, steps=(marked, *others))


def concerned(shards: Mapping[ShardId, ShardLease], shard: ShardId) -> list[ShardId]:
    """List the shard, and if it is over all that began after it, nearest first, ids in order."""
    shards_concerned = [shard]
    if shards[shard].state is not ShardState.OVER:
        return shards_concerned
    for parent in shards_concerned:
        children = (row.shard for row in shards.values() if parent in row.parents)
        shards_concerned += sorted(child for child in children if child not in shards_concerned)
    return shards_concerned


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
    """Return all that forcing the checkpoint of `rows[0]` to `cursor` does.

    A finished shard that is forced to where it ended has nothing to be read again: nothing is done.

    Args:
        rows: of the shards that are `concerned`, in that order.
        ledgers: their committed batches.
        cursor: the new checkpoint.
        ordered: whether it reads parents before children.
        members: its nodes.
        reason: for the journal.
        reopen: the caller's choice for the shards that began after this one.
        begins: where committed output begins, for the shards whose first output has expired.

    Raises:
        CheckpointRefused: the cursor has no place or is inside a batch, or shards that began
            after this one were read already and the caller chose to refuse; or output that would
            be read again has expired.
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
        raise children_consumed(key, row.shard, [each.shard for each in read])
    resets = read if reopen is Reopening.CASCADE else []
    for each in resets:
        if each.shard in begins:
            raise child_expired(key, row.shard, each.shard)
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


def _consumed(row: ShardLease, ledger: withdrawal.Ledger) -> bool:
    over = row.state is ShardState.OVER
    begun = over or row.check_point is not None or bool(row.consumer_run)
    return begun or withdrawal.last_before(ledger) is not None


def _mark(child: ShardLease, parent: ShardId, cursor: str, reason: str) -> Note | None:
    """Return the recorded choice that a child continues although its parent is read again."""
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
    """Send a descendant of a reopened shard back to its beginning, if there is a `why`, to wait."""
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
