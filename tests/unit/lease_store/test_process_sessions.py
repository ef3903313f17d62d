from __future__ import annotations

import sys
import time

import psutil

from dagster_leasehold.lease_store.process_sessions import wait_for_end


def test_an_orphan_whose_exit_code_nothing_collects_has_ended() -> None:
    """Method: here it is a parent that never asks; in a container, it is the first process."""
    program = "import subprocess, time; ended = subprocess.Popen(['true']); time.sleep(600)"
    parent = psutil.Popen([sys.executable, "-c", program])
    try:
        while not (children := parent.children()) or children[0].status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
        [unreaped] = children
        assert wait_for_end([unreaped], timeout_s=1.0)
        assert not wait_for_end([unreaped, parent], timeout_s=0.1)
    finally:
        parent.kill()
        parent.wait()
