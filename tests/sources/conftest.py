"""The sources of every case in this folder."""

from __future__ import annotations

from collections.abc import Generator
from importlib import import_module
from pathlib import Path

import pytest

from dagster_leasehold.lease_store.identifiers import ShardId
from tests.sources.world import SourceWorld

WORLDS = {
    "kafka_fake": "tests.sources.worlds.kafka_fake:KafkaFakeWorld",
    "kafka_mock": "tests.sources.worlds.kafka_mock:KafkaMockWorld",
    "kinesis-kinesalite": "tests.sources.worlds.kinesis:KinesaliteWorld",
    "kinesis-moto": "tests.sources.worlds.kinesis:MotoWorld",
    "loghub": "tests.sources.worlds.loghub:LogHubWorld",
    "local_log": "tests.sources.worlds.local_log:LocalLogWorld",
    "own_source": "tests.sources.worlds.own_source:OwnSourceWorld",
}


@pytest.fixture(scope="session", autouse=True)
def _packages(environment_of_workers: None) -> None:
    """Install the source of the documentation, because every case runs on it too."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(notion): skipped for a service that lacks the notion")


SECOND = "kinesis-moto"
"""Another server of a protocol: it knows nothing that the first one does not."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.release if name == SECOND else ())
        for name in sorted(WORLDS)
    ]
)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[SourceWorld]:
    """An empty log of each kind."""
    module, name = WORLDS[request.param].split(":")
    made: type[SourceWorld] = getattr(import_module(module), name)
    for mark in request.node.iter_markers("needs"):
        for notion in mark.args:
            if why := made.lacks.get(notion):
                pytest.skip(f"{request.param} does not know that {notion}: {why}")
    world = made(tmp_path)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def shard(world: SourceWorld) -> ShardId:
    """The first shard, filled with `VALUES`."""
    shard = world.source.list_shards()[0].shard
    world.fill(shard)
    return shard
