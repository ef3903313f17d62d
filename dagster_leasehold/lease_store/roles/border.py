"""Changes of a group's table: left by operations that change output which may be published."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.ledger_rows import Batch, LedgerCounters
from dagster_leasehold.lease_store.publication_rows import ChangeKind, Publication
from dagster_leasehold.lease_store.roles.operations import Rows
from dagster_leasehold.lease_store.rules.publishing import Border, border_of, changes_of_removal
from dagster_leasehold.lease_store.stored_rows import Above


def border_in(rows: Rows, shard: ShardId) -> Border | None:
    """Return the border of a shard whose row is locked; None where nobody publishes."""
    publication = rows.first(Publication, epoch=Above(0))
    if publication is None:
        return None
    (cursor,) = rows.values(LedgerCounters, "published_until", shard=shard)
    return border_of(shard, cursor, publication.pending)


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
        rows.add(*changes)
