"""The errors of Leasehold.

Each message has the problem, its subject and the remedy. Foreign values are escaped and truncated,
so that an error is always one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN_LENGTH_MAX = 80
LINE_BYTES_MAX = 300
NAMES_SHOWN_MAX = 20
_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+@")
_NAMED_SECRET = re.compile(
    r"(?i)\b((?:[\w-]*[_-])?(?:password|passwd|pwd|token|secret|apikey|key|authorization))"
    r"(\W{0,3}[=:]\s*)(?:bearer\s+)?('[^']*'|\"[^\"]*\"|[^\s,;&)]+)"
)


def shown(text: object) -> str:
    """Return `text` quoted for a message: one printable line of limited length."""
    escaped = repr(str(text))
    if len(escaped) <= SHOWN_LENGTH_MAX:
        return escaped
    return f"{escaped[:SHOWN_LENGTH_MAX]}… ({len(str(text))} characters)"


def one_line(text: str) -> str:
    """Return the first line of a foreign text: printable, and at most 300 bytes."""
    first = next((line for line in text.splitlines() if line.strip()), "").strip()
    printable = "".join(letter if letter.isprintable() else "?" for letter in first)
    encoded = printable.encode(errors="replace")
    if len(encoded) <= LINE_BYTES_MAX:
        return encoded.decode()
    return encoded[: LINE_BYTES_MAX - 3].decode(errors="ignore") + "…"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun: `1 shard`, `2,000 shards`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(names: Iterable[str]) -> str:
    """Return names as text; names after the first 20 are only counted."""
    items = list(names)
    if not items:
        return "none"
    text = ", ".join(items[:NAMES_SHOWN_MAX])
    omitted = len(items) - NAMES_SHOWN_MAX
    return f"{text} and {omitted} more" if omitted > 0 else text


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest name, or all names."""
    existing = sorted(names)
    if near := get_close_matches(name, existing, n=1):
        return f"did you mean {near[0]}?"
    return f"use one of {', '.join(existing)}." if existing else "there is none."


def plain_reason(message: str) -> str:
    """Return one of pydantic's messages without its prefix and its full stop."""
    return message.removeprefix("Value error, ").rstrip(".")


def without_secrets(line: str) -> str:
    """Mask parts of a line that look like credentials.

    The error messages of client libraries can contain their arguments.
    """
    return _NAMED_SECRET.sub(r"\1\2***", _CREDENTIALS.sub("***@", line))


class LeaseholdError(Exception):
    """The base of all errors of this project."""


class UserMistake(LeaseholdError):
    """An error that the user can fix; shown without a stack trace."""


class InvalidIdentifier(UserMistake):
    """A name does not match the grammar."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(
            f"{shown(text)} is not a valid {kind} name: use 1 to 64 letters, digits, '.', '_' "
            "or '-', beginning with a letter or digit."
        )


class InvalidSetting(UserMistake):
    """A setting is missing, unknown or invalid."""


class NoSpace(UserMistake):
    """The disk has too little space for a deployment."""


class UnknownStream(UserMistake):
    """No stream of this name is declared."""


class UnknownGroup(UserMistake):
    """The stream has no consumer group of this name."""


class GroupExists(UserMistake):
    """The stream already has a consumer group of this name."""


class GroupLimitReached(UserMistake):
    """The stream already has as many consumer groups as allowed."""


class GroupInUse(UserMistake):
    """The group still has live nodes, so it cannot be deleted without force."""


class UnknownShard(UserMistake):
    """The group has no shard of this id."""


class NodeNameTaken(UserMistake):
    """Another live process uses this node name."""


class AssignmentConflict(UserMistake):
    """A node's assignment settings contradict the group's other members."""


class ShardOccupied(UserMistake):
    """Another node holds the shard that was requested by name."""


class CheckpointRefused(UserMistake):
    """A checkpoint cannot be set like this without an explicit choice."""


class CopyRefused(UserMistake):
    """A lease store cannot be copied now, or with these URLs."""


class StoreError(LeaseholdError):
    """An operation of the lease store failed."""


class StoreUnavailable(StoreError):
    """The database does not answer. Nothing was changed, so a retry is safe."""


class StoreReadOnly(StoreError):
    """The database refuses writes (a replica, a demoted primary, a read-only file)."""


class OutcomeUnknown(StoreError):
    """The reply to a write was lost, so its outcome is unknown."""


class SchemaTooNew(StoreError):
    """The database was upgraded by a newer release of Leasehold."""


class SchemaTooOld(StoreError):
    """The database needs `leasehold db upgrade` before this release can use it."""


class CheckpointUnsaved(StoreError):
    """A member could not save a checkpoint, so it has not left its group."""


class LeaseLost(LeaseholdError):
    """A tenure is over, so it cannot write."""


class SourceError(LeaseholdError):
    """A source could not answer."""


class SourceUnavailable(SourceError):
    """The source does not answer. A retry is safe."""


class SourceThrottled(SourceUnavailable):
    """The service throttles, and retries did not help.

    Attributes:
        retry_after_s: the wait that the service requires, in seconds; 0 if unknown.
    """

    retry_after_s: float = 0.0

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SourceRefused(SourceError, UserMistake):
    """The service refuses the credentials, or they do not allow the request."""


class CursorExpired(SourceError):
    """Retention has removed the records at this cursor."""


class LogCorrupt(SourceError):
    """Stored bytes of a log are damaged."""


class IntentConflict(LeaseholdError):
    """A batch contradicts the ledger by its number, bounds or intent."""


class LogNotFound(SourceError, UserMistake):
    """There is no log in this folder, or with this name."""


class LogRenewed(SourceError, UserMistake):
    """A log was deleted and recreated, so its cursors point to other records."""


class LogExists(UserMistake):
    """The folder already has a local log."""


class ShardReadOnly(SourceError, UserMistake):
    """The shard was split or merged, so records go to its children."""


class ShardBusy(SourceError, UserMistake):
    """Another process is writing to the shard."""


class RecordRefused(UserMistake):
    """A record is too large for the log, or has the wrong type."""


class ReshardingRefused(UserMistake):
    """A shard cannot be split or merged like this."""


class CursorInvalid(SourceError, UserMistake):
    """A cursor is not one of this shard."""


class UnknownSource(UserMistake):
    """No source of this name is installed."""


class SourceLibraryMissing(UserMistake):
    """The client library of a source is not installed."""


class ModuloSettingMissing(AssignmentConflict):
    """A node of a group that assigns by modulo gives no source count or no node id."""


class ModuloIdOutOfRange(AssignmentConflict):
    """A node's id is not one of 0 … source count - 1."""


class ModuloCountMismatch(AssignmentConflict):
    """Two nodes of a group give different source counts."""


class ModuloIdTaken(AssignmentConflict):
    """Two nodes of a group give the same node id."""


class RunStalled(LeaseholdError):
    """A holder made no progress for too long, and released its shards."""


class ShardNotOpen(UserMistake):
    """This client has not opened the shard, or has released it."""


class BatchUnconfirmed(UserMistake):
    """The last batch of the shard is not confirmed yet."""


class ConfirmedTooLate(LeaseholdError):
    """The batch was rolled back after its protect time; its records are delivered again."""


class GapHeld(LeaseholdError):
    """Records were removed before they were read, and the group holds until the gap is accepted."""
