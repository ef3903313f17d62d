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
    """Gives each file to one process, and to one of them all files with one of these in common.

    Every process that needs Spark's server would start one of its own, and so with the deployment
    whose pages are looked at: each costs as much as dozens of tests.
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
    """Return what the tests of a file share with those of others."""
    text = (ROOT / file).read_text(encoding="utf-8")
    uses = (
        name
        for name, (folder, fixture) in SHARED.items()
        if file.startswith(folder) and fixture.search(text)
    )
    return next(uses, None)
