"""The fate of records that retention removed before they were read: a policy per group."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Boolean, Column, String, inspect

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Existing groups hold; gaps that were recorded before had all been skipped."""
    _add("consumer_group", Column("gap_policy", String(8), nullable=False, server_default="hold"))
    _add("gap", Column("skipped", Boolean, nullable=False, server_default="1"))


def _add(table: str, column: Column[str] | Column[bool]) -> None:
    # MySQL commits every change of a table by itself: an upgrade that was cut off goes on here.
    if column.name not in {each["name"] for each in inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)
