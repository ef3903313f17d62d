"""The agreement of all runs of a group on the columns of its table, before anything is committed.

Two runs can bring a new column at the same moment: the store takes one set of columns after
another, and the second adds its columns to the first's, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dagster_leasehold.assets.output.table.columns import Column, merged
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.outcomes import Changed
from dagster_leasehold.lease_store.publication_rows import TableColumns
from dagster_leasehold.lease_store.roles.publications import Publications


class ColumnAgreement:
    """The columns of one group's table, as this process knows them.

    Args:
        store: keeps them.
        key: the group.
    """

    def __init__(self, store: Publications, key: GroupKey) -> None:
        self._store = store
        self._key = key
        self._agreed: TableColumns | None = None

    def agree(self, files: Iterable[Sequence[Column]]) -> TableColumns:
        """Agree on the columns of some files, and return the table's.

        The store is asked only for columns that this process has not seen agreed on yet.

        Raises:
            TransformError: a column does not fit the one of its name.
            StoreError: the lease store does not answer.
        """
        column_lists = [list(columns) for columns in files]
        agreed = self._agreed or self._read()
        while True:
            columns: list[Column] = [dict(column) for column in agreed.columns]
            before = columns
            for each in column_lists:
                columns = merged(columns, each)
            if columns == before:
                self._agreed = agreed
                return agreed
            # Read again where another run was faster, or had brought them before this one looked.
            outcome = self._store.agree_columns(self._key, columns, seen_version=agreed.version)
            agreed = (
                TableColumns(agreed.version + 1, tuple[Any, ...](columns))
                if isinstance(outcome, Changed)
                else self._read()
            )

    def _read(self) -> TableColumns:
        publication = self._store.publication(self._key)
        return TableColumns() if publication is None else publication.columns
