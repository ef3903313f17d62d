"""At most one publication is pending, and the records of the table are counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from dagster_leasehold.lease_store.columns import ExactText, JsonText
from dagster_leasehold.lease_store.migrations import repeatable as make

revision = "0020"
down_revision = "0019"

_KEY = ("consume_group", "logstream_sig")
_publication = sa.table(
    "publication",
    *(sa.column(name, ExactText(64)) for name in _KEY),
    sa.column("last_publication", ExactText(255)),
    sa.column("recent", JsonText),
)


def upgrade() -> None:
    """Keep the newest id.

    What was on its way into another catalog is sent anew; if it arrived, the table's newest
    publication is not the one that is kept here, and nothing more is published without an operator.
    """
    make.add_column("publication", sa.Column("last_publication", ExactText(255)))
    make.add_column("publication", sa.Column("records", sa.BigInteger))
    make.add_column("publication", sa.Column("pending", JsonText))
    connection = op.get_bind()
    columns = {each["name"] for each in sa.inspect(connection).get_columns("publication")}
    if "recent" in columns:
        for *key, recent in connection.execute(
            sa.select(*(_publication.c[name] for name in _KEY), _publication.c.recent)
        ).all():
            if recent:
                same = (_publication.c[name] == own for name, own in zip(_KEY, key, strict=True))
                last = sa.update(_publication).where(*same).values(last_publication=recent[-1])
                connection.execute(last)
    make.drop_column("publication", "recent")
    make.drop_column("publication", "recorded")
