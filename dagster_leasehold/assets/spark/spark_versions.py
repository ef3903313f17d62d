"""Pure rules for the releases of Spark: which of them a node and a server may have together.

A Connect server speaks to clients of other releases too, and neither side looks: what one of them
lacks would show in the middle of a batch, as an error of a protocol. A server's release is asked
for once, when a session begins.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RELEASE = re.compile(r"(\d+)\.(\d+)(?!\d)")


class Release(NamedTuple):
    """A minor release of Spark, such as 4.3; what follows in a version, Spark keeps compatible."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{self.major}.{self.minor}"


OLDEST, NEWEST = Release(4, 0), Release(4, 3)
MINORS_APART_MAX = 1
FIRST_OF_JAVA_25 = Release(4, 2)
"""Earlier ones end at their start, or in their first job, on a Java that is newer than 21."""


def version_here() -> str:
    """Return the version of PySpark in this process."""
    from pyspark.version import __version__

    return __version__


def java_majors(version: str) -> tuple[int, int]:
    """Return the oldest and the newest Java that a version of Spark runs on."""
    release = release_of(version)
    return 17, 21 if release is not None and release < FIRST_OF_JAVA_25 else 25


def release_of(version: str) -> Release | None:
    """Return the release of a version, such as `4.1.2` or `4.0.1-amzn-0`; None if it has none."""
    match = _RELEASE.match(version)
    return Release(int(match[1]), int(match[2])) if match else None


def refusal(here: str, server: str) -> str | None:
    """Return the sentence that says why two versions do not go together; None if they do.

    Args:
        here: the version of PySpark in this process.
        server: the version of the Connect server.
    """
    bounds = f"Leasehold works with Spark {OLDEST} to {NEWEST}"
    releases: list[Release] = []
    for whose, version in (
        ("The PySpark of this node", here),
        ("The Spark Connect server", server),
    ):
        release = release_of(version)
        if release is None or not OLDEST <= release <= NEWEST:
            return f"{whose} has version {version}, and {bounds}."
        releases.append(release)
    ours, theirs = releases
    if abs(ours.minor - theirs.minor) > MINORS_APART_MAX:
        return (
            f"The PySpark of this node has version {here} and the Spark Connect server {server}, "
            f"which is more than one minor version apart: install pyspark {theirs} on the nodes."
        )
    return None


def go_together(here: str, there: str) -> bool:
    """Return True if PySpark may have these versions in this process and in Spark's workers."""
    return refusal(here, there) is None
