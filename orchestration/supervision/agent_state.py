"""The folder of a node's agent: a note for its successor, and a lock against other agents."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.errors import NodeNameTaken, shown
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.process_identity import ProcessIdentity, current_place

STATE_FILE = "agent.json"
LOCK_FILE = "agent.lock"


@dataclass(frozen=True, slots=True)
class AgentState:
    """The note of an agent for its successor in the same place.

    A successor goes on under the incarnation, so that a restart moves no shard: the file lock says
    that the predecessor is dead, and what it left running is ended first.

    Attributes:
        place: the boot and pid namespace in which it may be used: elsewhere the runs of the
            predecessor could not be ended, and would go on beating for the incarnation.
        incarnation: the one under which the node answers to its name.
        sessions: its code servers.
    """

    place: str
    incarnation: str
    sessions: tuple[ProcessIdentity, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> AgentState | None:
        """Return the note of the folder's last agent, if it was in this place and did not leave."""
        try:
            noted: Any = json.loads((folder / STATE_FILE).read_text())
            sessions = tuple(filter(None, map(ProcessIdentity.parse, noted["sessions"])))
            state = cls(str(noted["place"]), str(noted["incarnation"]), sessions)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return state if state.place and state.place == current_place() else None

    def write(self, folder: Path) -> None:
        """Write the note in one step."""
        sessions = [str(session) for session in self.sessions]
        noted = {"place": self.place, "incarnation": self.incarnation, "sessions": sessions}
        replace_file(folder / STATE_FILE, json.dumps(noted))

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove the note: whoever left needs no successor."""
        (folder / STATE_FILE).unlink(missing_ok=True)


@contextmanager
def answering_alone(folder: Path, node: NodeName) -> Generator[None]:
    """Hold a node's folder for one agent at a time.

    Raises:
        NodeNameTaken: another agent is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise NodeNameTaken(
            f"Another `leasehold node` answers to node {shown(node)} in {folder}: stop it, or use "
            "another name."
        ) from None
    try:
        yield
    finally:
        lock.release()
