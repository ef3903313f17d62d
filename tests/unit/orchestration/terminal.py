"""A `leasehold` command in a pseudo-terminal, as a person sees and types it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from typing import Self

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x1b\][^\x07]*\x07")
WAIT_S = 60.0
COMMAND_LINE = (sys.executable, "-m", "dagster_leasehold.orchestration.command_line")


class Terminal:
    """A command that runs in a terminal of 120 columns and 40 lines; it is killed on leaving.

    `program` is `leasehold` unless another one is named.
    """

    def __init__(
        self,
        *arguments: str,
        program: Sequence[str] = COMMAND_LINE,
        lines: int = 40,
        columns: int = 120,
    ) -> None:
        self._command = [*program, *arguments]
        self._size = struct.pack("HHHH", lines, columns, 0, 0)
        self._output = b""
        self._status: int | None = None

    def __enter__(self) -> Self:
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            os.environ["TERM"] = "xterm-256color"
            # They would count more than the terminal's own size.
            for name in ("COLUMNS", "LINES"):
                os.environ.pop(name, None)
            os.execv(self._command[0], self._command)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, self._size)
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._descriptor)

    @property
    def text(self) -> str:
        """The output so far, without control sequences."""
        return ESCAPES.sub("", self.raw)

    @property
    def raw(self) -> str:
        """The output so far, with its control sequences."""
        return self._output.decode(errors="replace")

    def sends(self, text: str) -> None:
        """Type a text; output from before no longer counts for `waits_for`."""
        self._output = b""
        os.write(self._descriptor, text.encode())

    def waits_for(self, pattern: str) -> None:
        """Wait until the output has a text."""
        until_s = time.monotonic() + WAIT_S
        while not re.search(pattern, self.text):
            assert time.monotonic() < until_s, f"no {pattern!r} in {self.text[-3000:]!r}"
            assert self._read() is not None, f"ended without {pattern!r}: {self.text[-3000:]!r}"

    def ended(self) -> int:
        """Wait until the command has ended, and return its exit code."""
        until_s = time.monotonic() + WAIT_S
        while self._read() is not None:
            assert time.monotonic() < until_s, f"still running: {self.text[-3000:]!r}"
        self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status

    def _read(self) -> bytes | None:
        """Return the new output within a moment; None once the command has ended."""
        if not select.select([self._descriptor], [], [], 0.2)[0]:
            return b""
        try:
            part = os.read(self._descriptor, 65_536)
        except OSError:
            return None
        self._output += part
        return part or None
