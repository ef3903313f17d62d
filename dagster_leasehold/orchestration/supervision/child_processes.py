"""Child processes that end with us; some are restarted when they have died.

Each is in its own session, and its output goes to a log file. A note beside the log says which
process it is: if its parent is killed, others end it by the note.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from dagster_leasehold.lease_store.durable_files import replace_file
from dagster_leasehold.lease_store.process_identity import ProcessIdentity
from dagster_leasehold.lease_store.process_sessions import has_ended, wait_for_end
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.orchestration.supervision.interrupts import held_back

POLL_S = 0.05
TAIL_BYTES = 4000
NOTE_SUFFIX = ".process"
CODE_UNKNOWN = 256
"""Stands for the exit code of a process that another one has started; none is as large."""
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""A child that has run for so long begins with the shortest wait again, in seconds."""


@dataclass(frozen=True, slots=True)
class ChildNote:
    """The note of a child, so that others find it when its parent was killed.

    Attributes:
        name: of the child, with its article.
        process: the child, which leads its session.
        parent: the process that started it, and ends it.
        stop_timeout_s: how long it can take to end when told to, in seconds.
    """

    name: str
    process: ProcessIdentity
    parent: ProcessIdentity
    stop_timeout_s: float

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the note in a file; None if there is none, or it is not readable."""
        try:
            noted: Any = json.loads(path.read_text())
            process, parent = map(ProcessIdentity.parse, (noted["process"], noted["parent"]))
            name, timeout_s = str(noted["name"]), float(noted["stop_timeout_s"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return cls(name, process, parent, timeout_s) if process and parent else None

    def write(self, path: Path) -> None:
        """Write the note in one step."""
        identities = {"process": str(self.process), "parent": str(self.parent)}
        noted = {"name": self.name, **identities, "stop_timeout_s": self.stop_timeout_s}
        replace_file(path, json.dumps(noted))


class RestartWaits:
    """The waits before a child is started again: they double with each start that does not last.

    Args:
        first_s: the shortest wait, in seconds.
        max_s: the longest wait, in seconds.
    """

    def __init__(self, first_s: float = PAUSE_FIRST_S, max_s: float = PAUSE_MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._failures = 0

    def settle(self, ran_s: float) -> None:
        """Begin with the shortest wait again, if the child has run for long."""
        if ran_s > STEADY_S:
            self._failures = 0

    def next_s(self) -> float:
        """Count a failure, and return the wait after it in seconds."""
        self._failures += 1
        return retry_wait_s(self._failures, first_s=self._first_s, max_s=self._max_s)


class SupervisedChild:
    """Supervision of a child that was started; `look` has to be called every second or so.

    Args:
        child: the process, entered.
        clock: monotonic seconds.
        explained: exit codes whose last line tells a person the remedy.
            It is started again after the longest wait, and the same line is passed on once.
    """

    def __init__(self, child: ChildProcess, clock: Clock, explained: Collection[int] = ()) -> None:
        self.child = child
        self._clock = clock
        self._explained = frozenset(explained)
        self._began_at = clock()
        self._waits = RestartWaits()
        self._again_at: float | None = None
        self._reason = ""

    def look(self) -> str:
        """Start the child again if that is due; return a sentence if it has just died."""
        now = self._clock()
        if self._again_at is not None:
            return self._start(now) if now >= self._again_at else ""
        code = self.child.exit_code()
        return "" if code is None else self._died(code, now)

    def _start(self, now: float) -> str:
        try:
            # What the dead one left running would be in the way of the next.
            self.child.stop()
            self.child.__enter__()
        except OSError as error:
            return self._put_off(now, f"could not be started: {error.strerror or error}.")
        self._again_at, self._began_at = None, now
        return ""

    def _died(self, code: int, now: float) -> str:
        if code in self._explained:
            return self._put_off(now, f"ended: {self.child.last_line()}")
        self._waits.settle(now - self._began_at)
        pause_s = self._waits.next_s()
        self._again_at, self._reason = now + pause_s, ""
        return (
            f"{self.child.title} ended with code {code}, and is started again in {pause_s:.0f} s: "
            f"see {self.child.log}."
        )

    def _put_off(self, now: float, reason: str) -> str:
        """Try again after the longest wait; return the sentence, unless it is as before."""
        self._again_at = now + PAUSE_MAX_S
        before, self._reason = self._reason, reason
        if reason == before:
            return ""
        return f"{self.child.title} {reason} It is tried again every {PAUSE_MAX_S:.0f} s."


class _Adopted(psutil.Process):
    """A process that another one has started, with the same methods as a child of ours."""

    def poll(self) -> int | None:
        """Return None while it runs; only its parent learns its exit code."""
        return CODE_UNKNOWN if has_ended(self) else None


class ChildProcess:
    """A child and all that it starts, to be entered with `with`; nothing of it outlives the block.

    Args:
        name: with its article, for messages.
        command: program and arguments.
        log: the file that its output is appended to.
        environment: its environment.
        folder: its working directory.
        stop_timeout_s: how long it can take to end when told to, in seconds.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        stop_timeout_s: float = 20.0,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | _Adopted | None = None

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Interrupted in between, it would run without anybody who could end it.
            with self.log.open("ab") as output, held_back():
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Its own group: our Ctrl-C does not reach it, we end it in order instead.
                    start_new_session=True,
                )
                self._write_note(ProcessIdentity.of(self._process.pid))
        except BaseException:
            self.stop()
            raise
        return self

    def adopt(self, process: ProcessIdentity) -> None:
        """Take over a process that a killed predecessor of ours has started like this.

        Raises:
            psutil.NoSuchProcess: it has just ended.
        """
        self._process = _Adopted(process.pid)
        self._write_note(process)

    def _write_note(self, child: ProcessIdentity) -> None:
        parent = ProcessIdentity.of(os.getpid())
        ChildNote(self.name, child, parent, self._stop_timeout_s).write(self._note)

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _note(self) -> Path:
        return self.log.with_suffix(NOTE_SUFFIX)

    @property
    def pid(self) -> int:
        """Its number; also that of its process group and session."""
        assert self._process is not None
        return self._process.pid

    def tell_to_end(self) -> None:
        """Tell it to end, and return at once; `stop` waits."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def exit_code(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def until(self, answers: Callable[[], bool], timeout_s: float, poll_s: float = POLL_S) -> str:
        """Wait until it answers; return nothing, or the reason why it does not.

        Args:
            answers: asks it, which can take a moment.
            timeout_s: the longest time that it can take, in seconds.
            poll_s: the pause between two questions, in seconds.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self.exit_code()) is None:
            if answers():
                return ""
            if time.monotonic() > deadline:
                return f"has not answered for {timeout_s:.0f} s"
            time.sleep(poll_s)
        return f"ended with code {code} before it answered"

    @property
    def title(self) -> str:
        """Its name at the beginning of a sentence."""
        return f"{self.name[0].upper()}{self.name[1:]}"

    @property
    def ending(self) -> str:
        """One sentence about its end, for people."""
        code = self.exit_code()
        how = "" if code == CODE_UNKNOWN else f" with code {code}"
        return f"{self.title} ended{how}: see {self.log}."

    def last_line(self) -> str:
        """Return the last line of its log, for messages."""
        try:
            text = self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def stop(self) -> None:
        """End it and its descendants: politely, then for certain."""
        process = self._process
        if process is None:
            return
        # Listed before the parent ends: afterwards their parent is unknown.
        family = self._descendants(process.pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal_group(process.pid, number)
            deadline = time.monotonic() + self._stop_timeout_s
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(POLL_S)
            if process.poll() is not None:
                break
        _signal_group(process.pid, signal.SIGKILL)
        for member in family:
            try:
                member.kill()
            except psutil.Error:
                continue
        wait_for_end(family, self._stop_timeout_s)
        if process.poll() is None:
            process.wait()
        self._process = None
        # The folder might have been deleted meanwhile.
        self._note.unlink(missing_ok=True)

    @staticmethod
    def _descendants(pid: int) -> list[psutil.Process]:
        """Return all descendants in the child's own session; one that left it means to stay."""
        try:
            descendants = psutil.Process(pid).children(recursive=True)
        except psutil.Error:
            return []
        family: list[psutil.Process] = []
        for member in descendants:
            try:
                if os.getsid(member.pid) == pid:
                    family.append(member)
            except OSError:
                continue
        return family


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
