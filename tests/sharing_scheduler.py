"""The tests that run in one process: those of a file, and those that share a slow server."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from typing_extensions import override
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
SEEDS = "tests/unit/assets/output/table/test_publishing_incidents.py"
SHARED = {
    "the session's Spark server": (
        "tests/",
        re.compile(r"[(, ](spark_folder|connect_session)\b(?!\()"),
    ),
    "the deployment of the pages": ("tests/ui/", re.compile(r"[(, ]scene\b(?!\()")),
}
"""Each shared thing: the folder of its files, and how they name its fixture."""


class SharingScheduling(LoadFileScheduling):
    """Gives each file to one process, and all files that share a slow server to the same one.

    Otherwise every process that needs Spark's server, or the deployment of the page tests, would
    start another one, which costs as much as dozens of tests.
    """

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file == SEEDS:
            # A thousand seeds share nothing: in one process they would outlast all other tests.
            return nodeid
        return shared_by(file) or file


@cache
def shared_by(file: str) -> str | None:
    """Return the slow servers that the tests of a file share with other files."""
    text = (ROOT / file).read_text(encoding="utf-8")
    uses = (
        name
        for name, (folder, fixture) in SHARED.items()
        if file.startswith(folder) and fixture.search(text)
    )
    return next(uses, None)
