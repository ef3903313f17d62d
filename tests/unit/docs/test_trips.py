"""The files that a heartbeat passes through are those of the page `life-of-a-lease`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.shard_rows import ShardListing
from tests.unit.test_layout import PACKAGE, ROOT

KEY = GroupKey.parse("group", "stream")
PAGE = ROOT / "contributing" / "life-of-a-lease.md"


def files_of(call: Callable[[], object]) -> set[str]:
    """The files of the package whose functions are called."""
    entered: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    package = ROOT / PACKAGE / "lease_store"
    paths = (Path(path).resolve() for path in entered if path.endswith(".py"))
    return {str(path.relative_to(package)) for path in paths if path.is_relative_to(package)}


def listed(heading: str) -> set[str]:
    """The files that the page lists for a trip."""
    (text,) = re.findall(rf"\*\*{heading}\*\*(.+?)\n\n", PAGE.read_text(), re.DOTALL)
    return set(re.findall(r"`(\w[\w/]*\.py)`", text))


def test_the_files_of_a_heartbeat_are_listed(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/leases.db")
    store.create_group(Group(KEY))
    store.sync_shards(KEY, [ShardListing(ShardId(str(i))) for i in range(4)], observer="test")
    member = GroupMember(store, KEY, Node(NodeName("a"), 0, ""), incarnation="a-1")
    first = files_of(member.register)
    member.heartbeat({})
    idle = files_of(lambda: member.heartbeat({}))
    store.close()
    assert listed("An idle heartbeat") == idle
    assert listed("The first one") == first - idle
