"""The output of commands that run services, or need Spark or a log service.

Separate tests compare it with the output of the real commands: see `assert_printed`.
"""

from __future__ import annotations

import re

RECORDED: dict[tuple[str, ...], tuple[str, str]] = {
    ("init",): (
        "leasehold init visits",
        """\
Wrote leasehold.toml, streams.py, visits.jsonl.
…
ok       source of visits: 8 shards, readable.
…
The next command: leasehold dev.""",
    ),
    ("node",): (
        "leasehold node --name node-a",
        """\
Starting node node-a on 127.0.0.1:4201 …
The code server of node node-a answers at 127.0.0.1:4201.
…
Node node-a is leaving: its shards go to other nodes.
…
Node node-a left group demo/default and freed 0 shards.""",
    ),
    ("dev",): (
        "leasehold dev",
        """\
Starting Dagster on .leasehold …
…
Open http://127.0.0.1:3000 in a browser. Ctrl-C stops the deployment.
…
Stopping; this takes a few seconds.""",
    ),
    ("stop",): (
        "leasehold stop",
        """\
Stopping process 4711 and its child processes …
All processes have stopped.""",
    ),
    ("top",): (
        "leasehold top",
        """\
demo/default · 1 node alive · 2 shards · lag 0 · 0 records/s
node  state  last heartbeat  takes runs  shards  release
a     alive         0 s ago  yes              2  0.2.0
shard  state          node  lag  age  records/s  caught up in  epoch  run  parents
0      already_alloc  a       0  0 s          0           0 s      1
1      already_alloc  a       0  0 s          0           0 s      1
…""",
    ),
    ("metrics",): (
        "leasehold metrics",
        "Metrics on http://127.0.0.1:9464/metrics; Ctrl-C ends it.",
    ),
    ("checkpoint", "import"): (
        "leasehold checkpoint import orders --consumer-group old-consumers",
        "Imported 1 checkpoint of 'old-consumers' into orders/default.",
    ),
    ("checkpoint", "export"): (
        "leasehold checkpoint export orders --consumer-group new",
        "Exported 2 checkpoints of orders/default to 'new'.",
    ),
}
"""For the words of a command: the whole command, and its output; `…` is any lines."""


def assert_printed(words: tuple[str, ...], output: str, **names: str) -> None:
    """Check that a command printed the text of the page, except for numbers and the test's names.

    Args:
        words: the words of the command.
        output: its output.
        names: the test's names by the names of the page.
    """
    expected = RECORDED[words][1]
    for documented, own in names.items():
        expected = expected.replace(documented, own)
    printed = iter(numberless(output).splitlines())
    for line in numberless(expected).splitlines():
        if line != "…":
            assert line in printed, f"`leasehold {' '.join(words)}` did not print: {line}\n{output}"


def numberless(text: str) -> str:
    """Return text with equal numbers, without spaces before them and plurals after them."""
    text = re.sub(r"\d[\d,.]*(?=[^\d,.]|$)", "0", re.sub(r"(?m)^ +(?=\d)", "", text))
    return re.sub(r"(?<=0 )(\w+?)s?\b", r"\1", text)
