"""The program `leasehold`: Ctrl-C ends it without a stack trace, also while it is being loaded."""

from __future__ import annotations

import signal


def main() -> int:
    """Run one command and return its exit code.

    1. Ctrl-C comes while modules are imported, or while the interpreter ends.
    2. Python's own handler would raise there, outside of every `except`, and print a stack trace.
    3. So the signal ends the process itself, except while a command is at work.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dagster_leasehold.orchestration.command_line import main as run

    signal.signal(signal.SIGINT, handler)
    try:
        return run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
