"""An upgrade waits until no node beats that could not use the new schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dagster_leasehold.lease_store.errors import OlderNodesBeat
from dagster_leasehold.lease_store.older_nodes import OlderNodes, wait_until_silent

SILENT = OlderNodes({"a of g@s": (7, "a-1"), "b of g@s": (3, "b-1")}, timeout_s=20.0)


class Looking:
    """Looks at a course of moments, and the time that passes between them."""

    def __init__(self, *moments: OlderNodes) -> None:
        self._moments: Iterator[OlderNodes] = iter(moments)
        self._last = moments[0]
        self.now = 0.0

    def look(self) -> OlderNodes:
        self._last = next(self._moments, self._last)
        return self._last

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def silent(self) -> OlderNodes:
        return wait_until_silent(self.look, clock=lambda: self.now, sleep=self.sleep)


def test_nodes_that_did_not_leave_are_watched_for_their_timeout() -> None:
    looking = Looking(SILENT)
    assert looking.silent() == SILENT
    assert looking.now == SILENT.timeout_s


@pytest.mark.parametrize("left", [0, 2])
def test_nobody_is_waited_for_where_all_have_left(left: int) -> None:
    looking = Looking(*[SILENT] * left, OlderNodes({}))
    assert looking.silent().counters == {}
    assert looking.now < 2


@pytest.mark.parametrize(
    "after",
    [
        SILENT.counters | {"b of g@s": (4, "b-1")},
        SILENT.counters | {"b of g@s": (3, "b-2")},
        {"a of g@s": (7, "a-1"), "c of g@s": (1, "c-1")},
    ],
    ids=["beats", "started again", "joined"],
)
def test_a_node_that_moves_is_named(after: dict[str, tuple[int, str]]) -> None:
    looking = Looking(*[SILENT] * 9, OlderNodes(after, 20.0))
    with pytest.raises(OlderNodesBeat, match=r"[bc] of g@s\. Stop all processes of that release"):
        looking.silent()
