"""Nothing: the index that it made is gone again, as is the column that it was for."""

from __future__ import annotations

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Leave everything as it is; databases may bear the number."""
