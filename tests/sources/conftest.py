"""The sources that every case of this folder runs on."""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib import import_module
from pathlib import Path

import pytest

from lease_store.identifiers import ShardId
from tests.integration.assets.conftest import connect_session, spark_folder
from tests.sources.world import SourceWorld
from tests.sources.worlds import own_source

__all__ = ["connect_session", "spark_folder"]

WORLDS = {
    "kafka_fake": "tests.sources.worlds.kafka_fake:KafkaFakeWorld",
    "kafka_mock": "tests.sources.worlds.kafka_mock:KafkaMockWorld",
    "kinesis-kinesalite": "tests.sources.worlds.kinesis:KinesaliteWorld",
    "kinesis-moto": "tests.sources.worlds.kinesis:MotoWorld",
    "loghub": "tests.sources.worlds.loghub:LogHubWorld",
    "local_log": "tests.sources.worlds.local_log:LocalLogWorld",
    "own_source": "tests.sources.worlds.own_source:OwnSourceWorld",
}


SECRETS_OF_WORKERS = {"TEST_KAFKA_PASSWORD": "hunter2-first"}


@pytest.fixture(scope="session", autouse=True)
def _environment_of_workers(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Spark's server starts before any world, and its workers keep the environment of that time."""
    packages = tmp_path_factory.mktemp("packages")
    own_source.install(packages, tmp_path_factory.mktemp("own-source"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS_OF_WORKERS.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        patch.syspath_prepend(str(packages))
        yield


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(notion): skipped for a service that lacks the notion")


@pytest.fixture(params=sorted(WORLDS))
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
