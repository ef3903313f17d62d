"""A shard remembers how far its committed output was compacted."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, inspect

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

COLUMNS = ("compacted_until", "looked_until")


def upgrade() -> None:
    """MySQL commits every change of a table by itself: an upgrade that was cut off goes on here."""
    columns = {column["name"] for column in inspect(op.get_bind()).get_columns("rewrite_claim")}
    for name in COLUMNS:
        if name not in columns:
            column = Column(name, BigInteger, nullable=False, server_default="0")
            op.add_column("rewrite_claim", column)
