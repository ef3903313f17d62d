"""Changes of a group's table: left by operations that change output which may be published."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch
from dagster_leasehold.lease_store.publication_rows import ChangeKind
from dagster_leasehold.lease_store.roles.operations import Rows
from dagster_leasehold.lease_store.rules.publishing import Border, border_of, changes_of_removal


def border_in(rows: Rows, shard: ShardId) -> Border | None:
    """Return the border of a shard whose row is locked; None where nobody publishes."""
    place = rows.published(shard)
    return None if place is None else border_of(shard, *place)


def record_removal(
    rows: Rows, shard: ShardId, kind: ChangeKind, gone: Callable[[int], Iterable[Batch]]
) -> None:
    """Have the table follow, where some batches of a shard are no longer committed output.

    `gone` reads those of them with numbers below one, as they were before; the shard's row is
    locked.
    """
    border = border_in(rows, shard)
    if border is not None:
        changes = changes_of_removal(kind, shard, gone(border.reached), border.published)
        rows.add_table_changes(changes)
