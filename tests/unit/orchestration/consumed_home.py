"""A home whose stream was consumed without Dagster and Spark: real log, store and output."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from dagster_leasehold.assets.consuming.consumption import Consumer
from dagster_leasehold.assets.consuming.consumption_report import ConsumptionReport
from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.group_rows import Group, Node
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.orchestration.project_module import SETTINGS_FILE
from dagster_leasehold.orchestration.settings import Settings
from dagster_leasehold.shard_sources.local_log import LocalLog
from dagster_leasehold.shard_sources.source import Limits
from tests.declared import declare
from tests.environment import forget_settings
from tests.unit.assets.consumption_world import ArrowSweeper, Beat

Refuses = Callable[[bytes], bool] | None
NODE = NodeName("a")
KEY = GroupKey.parse("default", "demo")
AT_ONCE = timedelta(seconds=-1)
"""The age of every file, even of one written just now, whose time may be ahead by milliseconds."""


class ConsumedHome:
    """A home with a log of `shards` shards, all held by one node; opened where it is there."""

    def __init__(
        self,
        home: Path,
        *,
        shards: int = 2,
        records_max: int = 4,
        database_url: str | None = None,
        key: GroupKey = KEY,
        output: Path | None = None,
    ) -> None:
        url = SecretStr(database_url) if database_url else None
        self.key = key
        self.settings = Settings(
            home=home, database_url=url, output=None if output is None else str(output)
        )
        if not (home / SETTINGS_FILE).exists():
            declare(home, str(key.stream))
        self.log = LocalLog(self.settings.log_folder(key.stream))
        self.place = self.settings.output_folder(key.stream, key.group)
        self.output = Path(str(self.place))
        self.store = open_store(self.settings.store_url, upgrade=True)
        self.stream = ShardStream(str(key.stream), self.log, limits=Limits(records_max=records_max))
        self.sweeper = ArrowSweeper(self.log, self.place)
        if not self.log.exists:
            self._begin(shards)

    def _begin(self, shards: int) -> None:
        LocalLog.create(self.log.root, shards)
        self.store.create_group(Group(self.key))
        self.join()

    def join(self) -> None:
        """Have the node hold all shards of the log."""
        self.store.register(self.key, Node(NODE, 0, "a-1"), observer="test")
        self.store.sync_shards(self.key, self.log.list_shards(), observer="test")
        claims = {
            lease.shard: (NODE, lease.lease_id) for lease in self.store.snapshot(self.key).shards
        }
        self.store.claim(self.key, claims, observer="test", reason="test")

    def append(self, records: int) -> None:
        """Append to every shard `<shard>:<offset>`."""
        for listing in self.log.list_shards():
            begin = int(self.log.bounds([listing.shard])[listing.shard].end)
            shard = listing.shard.encode()
            self.log.append(listing.shard, [b"%s:%d" % (shard, begin + n) for n in range(records)])

    def consume(self, run: str) -> dict[ShardId, ConsumptionReport]:
        """One run over all shards."""
        consumer = Consumer(
            stream=self.stream,
            store=self.store,
            node=NODE,
            run=run,
            sweeper=self.sweeper,
            heartbeat=Beat(),
            clock=lambda: 0.0,
        )
        return consumer.consume([listing.shard for listing in self.log.list_shards()])


@contextmanager
def home_of_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, records: int = 10, refuses: Refuses = None
) -> Generator[ConsumedHome]:
    """A home in the current folder, which the commands of this process use.

    Args:
        folder: the parent folder of the home.
        monkeypatch: undoes the changes after the test.
        records: the number in each of two shards, consumed by `run-1` in batches of four.
        refuses: returns True for values that go to quarantine.
    """
    forget_settings(monkeypatch)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LEASEHOLD_HOME", str(folder / "home"))
    home = ConsumedHome(folder / "home")
    home.append(records)
    if refuses is not None:
        home.sweeper.refuses = refuses
    home.consume("run-1")
    yield home
    home.store.close()
