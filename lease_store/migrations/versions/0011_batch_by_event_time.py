"""The index of event times names the whole place of a row, so that each page begins at its end."""

from __future__ import annotations

from alembic import op
from sqlalchemy import inspect

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_FORMER = "batch_by_event_span"
_INDEX = "batch_by_event_time"
_COLUMNS = ("consume_group", "logstream_sig", "event_span", "shard_id", "sequence")


def upgrade() -> None:
    """MySQL commits every change of a table by itself: an upgrade that was cut off goes on here."""
    indexes = {index["name"] for index in inspect(op.get_bind()).get_indexes("batch")}
    if _INDEX not in indexes:
        op.create_index(_INDEX, "batch", list(_COLUMNS))
    if _FORMER in indexes:
        op.drop_index(_FORMER, "batch")
