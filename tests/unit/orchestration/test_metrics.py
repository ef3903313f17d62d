"""The lag in a scrape, an unknown one included, so that an alert can see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from unittest.mock import patch

from dagster_leasehold.assets.shard_stream import ShardStream
from dagster_leasehold.lease_store.identifiers import GroupKey, ShardId
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.publication_rows import ShardLag
from dagster_leasehold.orchestration.metrics import StoreCollector
from dagster_leasehold.sensors.shard_list import sync_listing
from dagster_leasehold.shard_sources.source import ShardBounds
from tests.sources.world import START
from tests.unit.sensors.streams import ScriptedSource, scripted_stream


class Uncounted(ScriptedSource):
    """Its service does not count records: a lag is known at a shard's end alone."""

    def lag(self, shard: ShardId, cursor: str, bounds: ShardBounds) -> int | None:
        return 0 if cursor == bounds.end else None


@dataclass
class World:
    """The deployment that the exporter reads from."""

    stream: ShardStream
    scripted: ScriptedSource

    def __post_init__(self) -> None:
        self.memory = MemoryStore()
        sync_listing(self.memory, self.stream, self.scripted.shards, timeout_s=20.0)

    def store(self) -> MemoryStore:
        return self.memory

    def source(self, key: GroupKey) -> ScriptedSource:
        return self.scripted

    def scrape(self, name: str) -> dict[str, float]:
        families = {
            family.name: family
            for family in StoreCollector(
                self.store, self.source, now=lambda: START + timedelta(seconds=90)
            ).collect()
        }
        samples = families[f"leasehold_{name}"].samples
        return {sample.labels.get("shard", ""): sample.value for sample in samples}


def world() -> World:
    stream, _ = scripted_stream(3)
    source = Uncounted(list(stream.source.list_shards()), {"0": 0, "1": 7, "2": 0})
    return World(stream, source)


def test_an_unknown_lag_is_reported_as_unknown() -> None:
    scraped = world()
    assert scraped.scrape("lag_records") == {"0": 0, "2": 0}
    assert scraped.scrape("lag_known") == {"0": 1, "1": 0, "2": 1}
    assert scraped.scrape("source_up") == {"": 1}


def test_the_age_of_the_oldest_unread_record_counts_from_its_arrival() -> None:
    scraped = world()
    scraped.scripted.times_at = lambda cursors: dict.fromkeys(cursors, START)  # pyright: ignore
    assert scraped.scrape("lag_seconds") == {"0": 0, "1": 90, "2": 0}
    assert scraped.scrape("lag_seconds_known") == {"0": 1, "1": 1, "2": 1}


def test_an_unknown_age_is_reported_as_unknown() -> None:
    scraped = world()
    assert scraped.scrape("lag_seconds") == {"0": 0, "2": 0}
    assert scraped.scrape("lag_seconds_known") == {"0": 1, "1": 0, "2": 1}


def test_an_unavailable_source_leaves_a_metric_for_each_shard() -> None:
    scraped = world()
    scraped.scripted.down = "The source does not answer."
    assert scraped.scrape("lag_records") == {}
    assert scraped.scrape("lag_known") == {"0": 0, "1": 0, "2": 0}
    assert scraped.scrape("source_up") == {"": 0}


def test_a_damaged_shard_does_not_hide_the_lag_of_others() -> None:
    scraped = world()
    scraped.scripted.damaged = {"0"}
    assert scraped.scrape("lag_known") == {"0": 0, "1": 0, "2": 1}
    assert scraped.scrape("source_up") == {"": 1}


def test_unpublished_batches_are_counted() -> None:
    scraped = world()
    lag = ShardLag(ShardId("0"), 1, 3, 40, START, more=True)
    with patch.object(MemoryStore, "publication_lag", return_value=[lag, replace(lag, records=2)]):
        assert scraped.scrape("unpublished_batches") == {"": 6}
        assert scraped.scrape("unpublished_records") == {"": 42}
        assert scraped.scrape("publication_lag_seconds") == {"": 90}
    assert scraped.scrape("publication_lag_seconds") == {"": 0}
