"""Real logs are read line for line; without them, a generated log that is as irregular.

The real logs are those of the public LogHub collection: CRLF line ends, and bare carriage returns
within lines. LEASEHOLD_TEST_LOGS names their folder.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.acceptance.leasehold_process import DEMO, assert_nothing_runs, cat, leasehold

pytestmark = [
    pytest.mark.release,
    pytest.mark.dagster_processes,
    pytest.mark.spark,
    pytest.mark.timeout(400),
]

NEIGHBOUR = Path(__file__).parents[2].parent / "shared" / "data" / "loghub"


def awkward_log(path: Path, seed: int) -> None:
    """CRLF, bare CR, LF alone, empty lines, bytes that are not UTF-8, repeated lines, no end."""
    draw = random.Random(seed)
    pieces = [
        b"plain\n",
        b"windows\r\n",
        b"\n",
        b"\r\n",
        b"a\rbare\rreturn\r\n",
        b"latin \xe9\xff\x00 bytes\n",
        "grüße \u2028 漢字\n".encode(),
        b'{"json": "quoted \\" text"}\n',
        b" " * 5_000 + b"\n",
    ]
    numbered = [
        draw.choice(pieces).replace(b"plain", b"plain %d" % number) for number in range(2_000)
    ]
    path.write_bytes(b"".join(numbered) + b"the last line has no end")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The awkward log, and the real ones where they are."""
    awkward = tmp_path_factory.mktemp("logs") / "awkward.log"
    awkward_log(awkward, seed=3)
    folder = Path(os.environ.get("LEASEHOLD_TEST_LOGS") or NEIGHBOUR)
    return [awkward, *sorted(folder.glob("*.log"))]


def lines_of(path: Path) -> list[bytes]:
    """The lines as the design defines a record: without the line feed, with the return."""
    lines = path.read_bytes().split(b"\n")
    return lines if lines[-1] else lines[:-1]


def test_every_line_is_in_the_output_once_and_in_order(
    logs: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("loghub") / "home"
    inputs = [argument for path in logs for argument in ("--input", path)]
    done = leasehold(
        *("--home", home, "--timeout", 240),
        *inputs,
        folder=home.parent,
        timeout_s=330,
        program=DEMO,
    )
    assert done.code == 0, done.out + done.err
    loaded = [line for path in logs for line in lines_of(path)]
    committed = cat(home)
    assert Counter(record.value for record in committed) == Counter(loaded)
    # A line may occur twice, so order is shown by a walk: each shard's records, in the order of
    # their cursors, are a subsequence of the input.
    by_shard: dict[str, list[bytes]] = defaultdict(list)
    for record in committed:
        assert record.cursor == len(by_shard[record.shard])
        by_shard[record.shard].append(record.value)
    for values in by_shard.values():
        rest = iter(loaded)
        assert all(value in rest for value in values)
    assert_nothing_runs(home)
