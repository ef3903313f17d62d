"""The tests that run in one process: those of a file, and those that share a slow server."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from typing_extensions import override
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
SPARK, PAGES = "the session's Spark server", "tests/ui"
SEEDS = "tests/unit/assets/output/table/test_publishing_incidents.py"
_USES_SPARK = re.compile(r"[(, ](spark_folder|connect_session)\b(?!\()")


class SharingScheduling(LoadFileScheduling):
    """Gives each file to one process, and to one of them all files with one of these in common.

    Every process that needs Spark's server would start one of its own, and so with the deployment
    whose pages are looked at: each costs as much as dozens of tests.
    """

    @override
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if file.startswith(f"{PAGES}/"):
            return PAGES
        if file == SEEDS:
            # A thousand seeds share nothing: in one process they would outlast all other tests.
            return nodeid
        return SPARK if uses_spark(file) else file


@cache
def uses_spark(file: str) -> bool:
    """Return True if tests of a file take a fixture of the session's server."""
    return bool(_USES_SPARK.search((ROOT / file).read_text(encoding="utf-8")))
