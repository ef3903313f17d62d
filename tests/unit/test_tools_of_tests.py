"""The things that tests start from: databases made once, room on the disk, LogHub's groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dagster_deployment import ROOT
from tests.database_server import initialized_once
from tests.sls_server.server import SlsServer
from tests.sources.worlds.loghub import LOGSTORE, PROJECT, plain_client


def test_a_database_is_made_once_and_copied_after_that(tmp_path: Path) -> None:
    def command(draft: Path) -> list[str]:
        return [sys.executable, "-c", f"import pathlib; pathlib.Path({str(draft)!r}).mkdir()"]

    data = tmp_path / "cache" / "data"
    assert initialized_once(data, command) == data
    (data / "kept").touch()
    initialized_once(data, lambda _: ["/nothing/to/run"])
    assert (data / "kept").exists()


def test_a_database_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    def command(draft: Path) -> list[str]:
        words = "import sys; print('resolveip is missing'); sys.exit('No space left on device')"
        return [sys.executable, "-c", words, str(draft)]

    with pytest.raises(RuntimeError) as raised:
        initialized_once(tmp_path / "data", command)
    for words in ("resolveip is missing", "No space left on device", "exit status 1", "GiB free"):
        assert words in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_without_room_the_tests_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """Method: a `df` of ours that reports 100 MiB stands before the machine's on the path."""
    df = tmp_path / "df"
    df.write_text("#!/bin/sh\necho Filesystem\necho 'disk 1 1 102400 1% /'\n")
    df.chmod(0o755)
    refused = subprocess.run(
        ["sh", str(ROOT / "scripts/test_tools.sh")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr == (
        f"Cannot run the tests: {tmp_path} has 100 MiB free, and they need 5,120 MiB: make room, "
        "or set TMPDIR to a folder on another disk.\n"
    )
    assert refused.stdout == ""


def test_consumers_of_a_logstore_share_it_and_no_shard_has_two() -> None:
    """Goal: a shard moves to another consumer once its holder has release it, or is silent."""
    server = SlsServer(PROJECT)
    now_s = 1000.0
    server.received_at = lambda: now_s
    try:
        server.create(LOGSTORE, 4)
        client = plain_client(server.endpoint)
        client.create_consumer_group(PROJECT, LOGSTORE, "group", 10, False)

        def beat(consumer: str, *serving: int) -> list[int]:
            answer = client.heart_beat(PROJECT, LOGSTORE, "group", consumer, list(serving))
            return answer.get_shards()

        assert beat("a") == [0, 1, 2, 3]
        assert beat("b") == []
        assert beat("a", 0, 1, 2, 3) == [2, 3]
        assert beat("b") == []
        assert beat("a", 2, 3) == [2, 3]
        assert beat("b") == [0, 1]
        now_s += 11
        assert beat("b", 0, 1) == [0, 1, 2, 3]
        assert beat("a", 2, 3) == []
    finally:
        server.close()
