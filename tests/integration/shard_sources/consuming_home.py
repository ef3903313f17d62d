"""A home whose only stream is read by the command line and by runs without Spark."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.orchestration.settings import load_settings
from dagster_leasehold.shard_sources.source import Limits
from tests.command_output import output_of
from tests.declared import declare, stream_text
from tests.environment import forget_settings
from tests.unit.assets.consumption_world import ArrowSweeper, Beat
from tests.unit.docs.test_docs import fences

NODE = NodeName("a")
PAGE = Path(__file__).parents[3] / "docs/how-to/cut-over.md"


class ConsumingHome:
    """The home, and one node of its group `default`.

    Args:
        folder: the folder in which the home is created.
        monkeypatch: sets the environment in which the command line finds the home.
        stream: the stream's name.
        kind: the kind of its source.
        source: the source, for runs.
        options: the options from which the command line opens the source.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        stream: str,
        kind: str,
        source: Any,
        options: dict[str, Any],
    ) -> None:
        forget_settings(monkeypatch)
        self.key = GroupKey.parse("default", stream)
        self.source = source
        monkeypatch.setenv("LEASEHOLD_HOME", str(folder / "home"))
        declare(folder / "home", stream_text(stream, kind, options=options))

    @property
    def store(self) -> Any:
        return open_store(load_settings().store_url)

    def consume(self, run: str, records_max: int = 1000) -> None:
        """Consume everything, in runs that each open the shards of their moment."""
        store, key = self.store, self.key
        output = load_settings().output_folder(key.stream, key.group)
        stream = ShardStream(key.stream, self.source, limits=Limits(records_max=records_max))
        if not store.snapshot(key).nodes:
            store.register(key, Node(NODE, 0, "a-1"), observer="test")
        store.sync_shards(key, self.source.list_shards(), observer="test")
        for round_ in range(10):
            leases = store.snapshot(key).shards
            free = {row.shard: (NODE, row.lease_id) for row in leases if row.state == "not_alloc"}
            if not free and round_:
                return
            store.claim(key, free, observer="test", reason="test")
            consumer = Consumer(
                stream=stream,
                store=store,
                node=NODE,
                run=f"{run}-{round_}" if round_ else run,
                sweeper=ArrowSweeper(self.source, output),  # pyright: ignore[reportArgumentType]
                heartbeat=Beat(),
                clock=lambda: 0.0,
            )
            consumer.consume([row.shard for row in leases if row.state not in ("wait", "over")])

    def checkpoints(self) -> dict[str, str | None]:
        return {row.shard: row.check_point for row in self.store.snapshot(self.key).shards}


def do_as_the_page_says(
    capsys: pytest.CaptureFixture[str], heading: str, block: int = 0, **names: str
) -> None:
    """Run the commands of a block of the how-to page under a heading.

    Args:
        capsys: captures their output.
        heading: the section of the page.
        block: the number of the block in it.
        names: the test's names by the names of the page.
    """
    for command in fences(PAGE, "console", heading)[block].splitlines():
        words = shlex.split(command.removeprefix("$ leasehold "))
        output_of(capsys, *(names.get(word, word) for word in words))


def committed(
    capsys: pytest.CaptureFixture[str], stream: str, shard: str | None = None
) -> list[str]:
    """Return the committed values of a shard, or of all, in order per shard."""
    rows = map(json.loads, output_of(capsys, "cat", stream).splitlines())
    return [row["value"] for row in rows if shard in (None, row["shard_id"])]


def assert_each_once(old: list[str], new: list[str], log: list[str]) -> None:
    """Each record of the log was read by exactly one of the two."""
    read = Counter(old) + Counter(new)
    assert read == Counter(log), {
        "lost": sorted((Counter(log) - read).elements()),
        "doubled": sorted((read - Counter(log)).elements()),
    }
