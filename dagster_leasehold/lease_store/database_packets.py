"""Statements that are larger than the server takes, which it answers by closing the connection.

1. A commit with very many files is one statement of 20 MiB; `max_allowed_packet` is 16 MiB.
2. The server closes the connection while the statement is still being sent. The driver reports
   error 2006, exactly as for a server that went away.
3. Trying again is useless, and looking for a dead server is, too. So the statement's size is
   compared with the session's limit, and the error gets the number that the server has for it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine.interfaces import ExceptionContext

from dagster_leasehold.lease_store.database_errors import PACKET_TOO_LARGE

LOST_WHILE_SENDING = frozenset({2006, 2013, 2055})
MANY_ROWS_BYTES = 1_024_000
"""The size at which the driver divides a statement of many rows."""


class PacketLimit:
    """The largest packet that the server of an engine takes, as its newest session has it."""

    def __init__(self) -> None:
        self._bytes: int | None = None

    def read(self, cursor: Any) -> None:
        """Read the limit of a new session, which stays the same for as long as it lasts."""
        cursor.execute("SELECT @@max_allowed_packet")
        self._bytes = int(cursor.fetchone()[0])

    def name_cause(self, context: ExceptionContext) -> None:
        """Give an error that is due to the size of its statement the number and words for that."""
        error: Any = context.original_exception
        number = error.args[0] if error.args else 0
        if number == PACKET_TOO_LARGE:
            context.is_disconnect = True
        execution: Any = context.execution_context
        if number not in LOST_WHILE_SENDING or execution is None or self._bytes is None:
            return
        size = _sent_bytes(execution.cursor, context.statement or "", context.parameters)
        if size >= self._bytes:
            error.args = (
                PACKET_TOO_LARGE,
                f"a statement of {size} bytes is larger than max_allowed_packet of {self._bytes}",
            )


def _sent_bytes(cursor: Any, statement: str, parameters: Any) -> int:
    """Return the size of the largest packet that the driver made of a statement."""
    many = isinstance(parameters, list)
    rows: list[Any] = parameters if many else [parameters]
    sizes = [len(cursor.mogrify(statement, row).encode("utf-8", "replace")) for row in rows]
    return 1 + min(sum(sizes), max(*sizes, MANY_ROWS_BYTES if many else 0))
