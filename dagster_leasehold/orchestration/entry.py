"""The entry point of `leasehold`, which prints no stack trace at Ctrl-C, even during imports."""

from __future__ import annotations

import signal


def main() -> int:
    """Run one command and return its exit code.

    1. The user presses Ctrl-C while modules are imported, or while the interpreter exits.
    2. Python's handler would raise KeyboardInterrupt there, outside every `except`, and Python
       would print a stack trace.
    3. So SIGINT keeps its default action, which ends the process, except while a command runs.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dagster_leasehold.orchestration.command_line import main as run

    signal.signal(signal.SIGINT, handler)
    try:
        return run()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
