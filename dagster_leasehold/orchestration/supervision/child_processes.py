"""Child processes that end with their parent, and their restart after a crash.

Each child runs in its own session and writes to a log file. A note beside the log identifies the
process, so that other processes can end it if its parent is killed.
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
from dagster_leasehold.orchestration.supervision.forked_programs import fork_of
from dagster_leasehold.orchestration.supervision.interrupts import deferred_signals

POLL_S = 0.05
TAIL_BYTES = 4000
NOTE_SUFFIX = ".process"
CODE_UNKNOWN = 256
"""The exit code of an adopted process: only its parent gets the real code, which is smaller."""
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""A child that runs for longer than this, in seconds, resets the back-off of its restarts."""


@dataclass(frozen=True, slots=True)
class ChildNote:
    """The note that identifies a child process, in case its parent is killed.

    Attributes:
        name: the name of the child, with an article.
        parent: the process that started the child and must end it.
        stop_timeout_s: the longest time that the child takes to stop, in seconds.
    """

    name: str
    process: ProcessIdentity
    parent: ProcessIdentity
    stop_timeout_s: float

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the note in a file; None if the file is missing or not a note."""
        try:
            fields: Any = json.loads(path.read_text())
            process, parent = map(ProcessIdentity.parse, (fields["process"], fields["parent"]))
            name, timeout_s = str(fields["name"]), float(fields["stop_timeout_s"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return cls(name, process, parent, timeout_s) if process and parent else None

    def write(self, path: Path) -> None:
        """Write the note atomically."""
        identities = {"process": str(self.process), "parent": str(self.parent)}
        fields = {"name": self.name, **identities, "stop_timeout_s": self.stop_timeout_s}
        replace_file(path, json.dumps(fields))


class RestartWaits:
    """The exponential back-off between restarts of a child."""

    def __init__(self, first_s: float = PAUSE_FIRST_S, max_s: float = PAUSE_MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._failures = 0

    def settle(self, ran_s: float) -> None:
        """Reset the back-off if the child ran for longer than `STEADY_S`."""
        if ran_s > STEADY_S:
            self._failures = 0

    def next_s(self) -> float:
        """Count a failure, and return the wait before the next start in seconds."""
        self._failures += 1
        return retry_wait_s(self._failures, first_s=self._first_s, max_s=self._max_s)


class SupervisedChild:
    """The supervision of a running child; the caller calls `check` about once a second.

    Args:
        explained: exit codes whose remedy is in the last line of the log. The child is then
            restarted after the longest wait, and the same line is reported once.
    """

    def __init__(self, child: ChildProcess, clock: Clock, explained: Collection[int] = ()) -> None:
        self.child = child
        self._clock = clock
        self._explained = frozenset(explained)
        self._started_at = clock()
        self._waits = RestartWaits()
        self._restart_at: float | None = None
        self._reason = ""

    def check(self) -> str:
        """Restart the child if a restart is due; return a message if the child has just died."""
        now = self._clock()
        if self._restart_at is not None:
            return self._start(now) if now >= self._restart_at else ""
        code = self.child.exit_code()
        return "" if code is None else self._died(code, now)

    def _start(self, now: float) -> str:
        try:
            # Descendants of the dead child can still use resources, such as a port.
            self.child.stop()
            self.child.__enter__()
        except OSError as error:
            return self._postpone(now, f"could not be started: {error.strerror or error}.")
        self._restart_at, self._started_at = None, now
        return ""

    def _died(self, code: int, now: float) -> str:
        if code in self._explained:
            return self._postpone(now, f"ended: {self.child.last_line()}")
        self._waits.settle(now - self._started_at)
        pause_s = self._waits.next_s()
        self._restart_at, self._reason = now + pause_s, ""
        return (
            f"{self.child.title} ended with code {code} and restarts in {pause_s:.0f} s: see "
            f"{self.child.log}."
        )

    def _postpone(self, now: float, reason: str) -> str:
        """Schedule the next start after the longest wait; return the message if it is new."""
        self._restart_at = now + PAUSE_MAX_S
        last_reason, self._reason = self._reason, reason
        if reason == last_reason:
            return ""
        return f"{self.child.title} {reason} Retrying every {PAUSE_MAX_S:.0f} s."


class _AdoptedProcess(psutil.Process):
    """A process that is not our child, with the methods of `Popen` that are used here."""

    def poll(self) -> int | None:
        """Return None while the process runs, then `CODE_UNKNOWN`."""
        return CODE_UNKNOWN if has_ended(self) else None


class ChildProcess:
    """A child process for a `with` block, which stops it and its descendants at the end.

    Args:
        name: its name in messages, with an article.
        stop_timeout_s: the time from SIGTERM to SIGKILL, in seconds.
        forked: True to run the program, a Python module, in a fork of this process if possible.
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
        forked: bool = False,
    ) -> None:
        self._forked = forked
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | _AdoptedProcess | None = None

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        fork = fork_of(self._command, self._environment) if self._forked else None
        try:
            # If a signal came between start and note, no other process could end the child.
            with self.log.open("ab") as output, deferred_signals():
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # In its own session, it does not receive our Ctrl-C; `stop` ends it.
                    start_new_session=True,
                    preexec_fn=fork,  # noqa: PLW1509
                )
                self._write_note(ProcessIdentity.of(self._process.pid))
        except BaseException:
            self.stop()
            raise
        return self

    def adopt(self, process: ProcessIdentity) -> None:
        """Adopt a process that a killed predecessor of this process started."""
        self._process = _AdoptedProcess(process.pid)
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
        """The id of the process, its process group and its session."""
        assert self._process is not None
        return self._process.pid

    def terminate(self) -> None:
        """Send SIGTERM without waiting for the end; `stop` waits."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def exit_code(self) -> int | None:
        """Return its exit code, or None while it runs."""
        return None if self._process is None else self._process.poll()

    def until(self, answers: Callable[[], bool], timeout_s: float, poll_s: float = POLL_S) -> str:
        """Wait until the child answers; return the reason if it does not, otherwise an empty text.

        Args:
            answers: returns True if the child answers; can block briefly.
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
        """The name with a capital letter."""
        return f"{self.name[0].upper()}{self.name[1:]}"

    @property
    def ending(self) -> str:
        """A message about the end of the child."""
        code = self.exit_code()
        code_text = "" if code == CODE_UNKNOWN else f" with code {code}"
        return f"{self.title} ended{code_text}: see {self.log}."

    def last_line(self) -> str:
        """Return the last line of its log that is not empty."""
        try:
            text = self.log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def stop(self) -> None:
        """Stop the child and its descendants with SIGTERM, and after the timeout with SIGKILL."""
        process = self._process
        if process is None:
            return
        # Listed before the process ends, because the system then drops the ancestry.
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
        # The folder may have been deleted.
        self._note.unlink(missing_ok=True)

    @staticmethod
    def _descendants(pid: int) -> list[psutil.Process]:
        """Return the descendants in the child's session; daemons have left it."""
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
