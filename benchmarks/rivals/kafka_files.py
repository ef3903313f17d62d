"""A consumer of confluent-kafka that writes files, as its documentation advises.

`python -m benchmarks.rivals.kafka_files BROKERS FOLDER WORKER INTERVAL_S TIMEOUT_S` runs until it
is killed. Offsets are committed by hand, after the file is on the disk, and before partitions are
revoked: at least once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rivals.log_feed import TOPIC
from benchmarks.rivals.output_files import write_durably

POLL_S = 0.05


class FileConsumer:
    """One member of the group, with the records that it has not written yet."""

    def __init__(self, brokers: str, folder: Path, worker: str, timeout_s: float) -> None:
        from confluent_kafka import Consumer

        self._folder, self._worker = folder, worker
        self._records: list[bytes] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": brokers,
                "group.id": "files",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": round(timeout_s * 1000),
                "heartbeat.interval.ms": round(timeout_s * 1000 / 3),
            }
        )
        self._consumer.subscribe([TOPIC], on_revoke=self._revoked, on_lost=self._lost)

    def run(self, interval_s: float) -> None:
        """Write what has come, once in an interval."""
        written_s = time.monotonic()
        while True:
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                self._records.append(message.value() or b"")
            if time.monotonic() - written_s >= interval_s:
                self._write()
                written_s = time.monotonic()

    def _write(self) -> None:
        from confluent_kafka import KafkaException

        if not self._records:
            return
        write_durably(self._folder, self._worker, self._records)
        self._records.clear()
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            # The partitions are another's by now; the next poll says so.
            print(f"not committed: {error}", flush=True)

    def _revoked(self, *_: Any) -> None:
        self._write()

    def _lost(self, *_: Any) -> None:
        self._records.clear()


if __name__ == "__main__":
    brokers, folder, worker, interval_s, timeout_s = sys.argv[1:]
    FileConsumer(brokers, Path(folder), worker, float(timeout_s)).run(float(interval_s))
