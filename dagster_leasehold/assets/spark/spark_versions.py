"""Pure rules for which Spark releases of a node and a server are compatible.

A Connect server accepts clients of other releases, and neither side compares them. A feature that
one side lacks would fail in the middle of a batch, with a protocol error. So `spark_session`
requests the server's release once, when a session begins.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RELEASE = re.compile(r"(\d+)\.(\d+)(?!\d)")


class Release(NamedTuple):
    """A minor release of Spark, such as 4.3, whose patch releases are all compatible."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return the release as in `4.3`."""
        return f"{self.major}.{self.minor}"


OLDEST, NEWEST = Release(4, 0), Release(4, 3)
MINORS_APART_MAX = 1
FIRST_OF_JAVA_25 = Release(4, 2)
"""On a Java newer than 21, earlier releases fail at their start or in their first job."""


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
    """Return an error message for two incompatible versions; None if they are compatible."""
    bounds = f"Leasehold works with Spark {OLDEST} to {NEWEST}"
    releases: list[Release] = []
    for subject, version in (
        ("The PySpark of this node", here),
        ("The Spark Connect server", server),
    ):
        release = release_of(version)
        if release is None or not OLDEST <= release <= NEWEST:
            return f"{subject} has version {version}, and {bounds}."
        releases.append(release)
    ours, theirs = releases
    if abs(ours.minor - theirs.minor) > MINORS_APART_MAX:
        return (
            f"The PySpark of this node has version {here} and the Spark Connect server {server}, "
            f"which is more than one minor version apart: install pyspark {theirs} on the nodes."
        )
    return None


def releases_agree(here: str, there: str) -> bool:
    """Return True if this process and Spark's workers can have these versions of PySpark."""
    return refusal(here, there) is None
