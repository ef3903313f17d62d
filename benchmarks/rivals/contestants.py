"""The contestants: their logs, the commands of their workers, and where readers look."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Self
from unittest.mock import patch

from typing_extensions import override

from benchmarks.figures.node_processes import node_command, node_daemon, node_environment
from benchmarks.rivals.log_feed import TOPIC, FileLog, KafkaLog, Log, LogHubLog
from benchmarks.rivals.output_files import finished_files
from benchmarks.rivals.strikes import MARK
from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.attempts import attempt_label
from dagster_leasehold.assets.output.committed_output import CommittedOutput
from dagster_leasehold.lease_store import open_store
from dagster_leasehold.lease_store.errors import UnknownGroup
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.orchestration.settings import load_settings
from tests import mariadb
from tests.database_server import program
from tests.declared import declare, stream_text

INTERVAL_S = 1.0
"""The pace of all: the commit interval, the trigger, the pause between files or fetches."""
KEY = GroupKey.parse("default", TOPIC)


class Contestant(ABC):
    """A system under test; its log and what it needs besides workers live within the block.

    Args:
        folder: of its own.
        timeout_s: after so long a silence, others take over.

    Attributes:
        workers: how many share the log; a single one is replaced once it has been silent.
        control_mark: the mark of processes that are never struck.
    """

    workers = 2
    log_kind: Callable[[Path], Log]
    libraries: tuple[str, ...] = ()

    def __init__(self, name: str, folder: Path, timeout_s: float) -> None:
        self.name, self.folder, self.timeout_s = name, folder, timeout_s
        self.output = folder / "output"
        self.output.mkdir(parents=True)
        self.control_mark = f"{name} control {os.getpid()}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.log = self.log_kind(self.folder)
        self._stack.callback(self.log.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def command(self, worker: int) -> list[str]:
        """Return the command of a worker."""

    def environment(self) -> Mapping[str, str]:
        """Return the environment of its processes."""
        return os.environ

    def readable(self) -> list[str]:
        """Return the files that a reader of the output takes now."""
        return finished_files(self.output)

    def writers(self, paths: Collection[str]) -> set[int]:
        """Return the workers that began these files."""
        return {int(Path(path).name.lstrip(".").split("-")[0]) for path in paths}

    def versions(self) -> str:
        """Return what takes part, with versions."""
        return ", ".join(f"{name} {version(name)}" for name in self.libraries)

    def _program(self, module: str, worker: int, *more: object) -> list[str]:
        command = [sys.executable, "-m", f"benchmarks.rivals.{module}", self.log.address]
        given = (self.output, worker, INTERVAL_S, *more)
        return [*command, *map(str, given)]


class KafkaConsumers(Contestant):
    """A group of two confluent-kafka consumers."""

    log_kind = KafkaLog
    libraries = ("confluent-kafka",)

    @override
    def command(self, worker: int) -> list[str]:
        return self._program("kafka_files", worker, self.timeout_s)


class LogHubConsumers(Contestant):
    """A consumer group of two workers of the LogHub SDK."""

    log_kind = LogHubLog
    libraries = ("aliyun-log-python-sdk",)

    @override
    def command(self, worker: int) -> list[str]:
        return self._program("loghub_files", worker, self.timeout_s)


class Streaming(Contestant):
    """One query of Structured Streaming, replaced by a new one when it is dead or silent."""

    log_kind = FileLog
    libraries = ("pyspark",)
    workers = 1

    @override
    def command(self, worker: int) -> list[str]:
        return self._program("streaming_files", worker, self.name.rsplit(" ", 1)[1])

    @override
    def writers(self, paths: Collection[str]) -> set[int]:
        return {0} if paths else set()


class Leasehold(Contestant):
    """Two nodes with a Spark of their own each, as on two hosts; a daemon, and a MariaDB."""

    log_kind = KafkaLog
    libraries = ("dagster-leasehold", "dagster", "pyspark", "confluent-kafka")

    @override
    def __enter__(self) -> Self:
        super().__enter__()
        stream = stream_text(
            TOPIC,
            "kafka",
            options={"bootstrap_servers": self.log.address},
            pace=f"Pace(commit_interval_s={INTERVAL_S})",
            iceberg=f"TableSettings(publish_interval_s={INTERVAL_S})",
        )
        declare(self.folder, stream, settings=f"lease_timeout_s = {self.timeout_s}\n")
        with patch.dict(os.environ, {MARK: self.control_mark}):
            database = self._stack.enter_context(mariadb.running())
        self._stack.enter_context(patch.dict(os.environ, database.of_deployment()))
        self.settings = load_settings(home=self.folder, agents=True)
        self._group_output = self.settings.output_folder(KEY.stream, KEY.group)
        self._store = open_store(self.settings.store_url, upgrade=True)
        self._stack.callback(self._store.close)
        self._stack.enter_context(node_daemon(self.settings, {MARK: self.control_mark}, mysql=True))
        return self

    @override
    def command(self, worker: int) -> list[str]:
        return node_command(self.folder, f"node-{worker}")

    @override
    def environment(self) -> Mapping[str, str]:
        return node_environment(self.settings)

    @override
    def readable(self) -> list[str]:
        with suppress(TableUnavailable, UnknownGroup):
            output = CommittedOutput(self._store, KEY, self._group_output)
            return [str(file.path) for file in output.plan().files]
        return []

    @override
    def writers(self, paths: Collection[str]) -> set[int]:
        if not paths:
            return set()
        return {
            int(row.consumer_owner.rsplit("-", 1)[1])
            for row in self._store.snapshot(KEY).shards
            if row.consumer_run and row.consumer_owner
            if any(f"/{attempt_label(row.consumer_run)}-" in path for path in paths)
        }

    @override
    def versions(self) -> str:
        command = [program("mariadbd") or "mariadbd", "--version"]
        server = subprocess.run(command, check=True, capture_output=True, text=True)
        return f"{super().versions()}, MariaDB {server.stdout.split()[2]}"


CONTESTANTS: Mapping[str, type[Contestant]] = {
    "leasehold": Leasehold,
    "streaming append": Streaming,
    "streaming batch-id": Streaming,
    "confluent-kafka": KafkaConsumers,
    "loghub sdk": LogHubConsumers,
}
