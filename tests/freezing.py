"""Freezing a process of a test, so that it does nothing more once the call has returned."""

from __future__ import annotations

import os
import signal


def freeze(child: int) -> None:
    """Stop a child with SIGSTOP and wait until it stalls; SIGCONT wakes it.

    The signal alone is not enough: one thread receives it and stops the others. Until that thread
    gets a processor, the others continue and can answer.
    """
    os.kill(child, signal.SIGSTOP)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"process {child} has ended, with status {status}"
