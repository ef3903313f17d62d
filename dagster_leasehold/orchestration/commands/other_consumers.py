"""The other consumers of a log, for `leasehold checkpoint import` and `export`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.errors import shown
from dagster_leasehold.orchestration.commands.target import source_name
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress, OtherConsumers

if TYPE_CHECKING:
    from dagster_leasehold.assets.shard_stream import ShardStream
    from dagster_leasehold.shard_sources.kafka.source import KafkaSource


class Kind(StrEnum):
    """The kinds of consumers whose checkpoints can be read."""

    KAFKA_GROUP = "kafka-group"
    KCL = "kcl"
    LOGHUB_GROUP = "loghub-group"
    SPARK_OFFSETS = "spark-offsets"


SOURCE_OF = {
    Kind.KAFKA_GROUP: "kafka",
    Kind.KCL: "kinesis",
    Kind.LOGHUB_GROUP: "loghub",
    Kind.SPARK_OFFSETS: "kafka",
}


def other_consumers(
    stream: ShardStream, kind: Kind | None, name: str, *, stopped: bool, failover_s: float = 10.0
) -> OtherConsumers:
    """Open the other consumers of a stream.

    Args:
        kind: the kind; None means the first kind for the stream's source.
        name: the name of the consumer group or KCL application, or the checkpoint location of a
            Spark query.

    Raises:
        InvalidSetting: the kind reads another source than the stream, or the checkpoint location of
            a Spark query is not supported.
    """
    source: Any = stream.source
    stream_source = source_name(source)
    kind = kind or next((kind for kind, of in SOURCE_OF.items() if of == stream_source), None)
    if kind is None or SOURCE_OF[kind] != stream_source:
        sources = ", ".join(sorted({SOURCE_OF[kind]} if kind else {*SOURCE_OF.values()}))
        raise errors.InvalidSetting(
            f"Stream {shown(stream.name)} reads from the source {shown(stream_source)}, but these "
            f"checkpoints exist only for streams of: {sources}."
        )
    match kind:
        case Kind.KAFKA_GROUP:
            return source.consumer_group(name)
        case Kind.SPARK_OFFSETS:
            return SparkQuery(source, name, stopped=stopped)
        case Kind.KCL:
            from dagster_leasehold.shard_sources.kinesis.kcl import KclApplication

            return KclApplication(source, name, failover_s)
        case Kind.LOGHUB_GROUP:
            from dagster_leasehold.shard_sources.loghub.consumer_groups import ServiceConsumerGroup

            return ServiceConsumerGroup(source, name, stopped=stopped)


class SparkQuery:
    """A Structured Streaming query on a topic, with the progress in its checkpoint location.

    Args:
        location: a folder, or the URI of a folder in an object store.
    """

    def __init__(self, source: KafkaSource, location: str, *, stopped: bool) -> None:
        from dagster_leasehold.assets.places.address import output_place

        self._topic = source.topic
        self._place = output_place(location)
        self._stopped = stopped

    def progress(self) -> GroupProgress:
        """Return the offsets at the end of the query's newest completed batch.

        Raises:
            UnknownGroup: no batch is complete, or the query does not read the topic.
            CheckpointRefused: the format of the offset log is unknown.
            OSError: the location cannot be read.
        """
        from dagster_leasehold.shard_sources.kafka.spark_offsets import offsets_of, query_batches

        batches = query_batches(self._file_names("offsets"), self._file_names("commits"))
        content = (self._place / f"offsets/{batches.committed}").content() or b""
        return GroupProgress(
            offsets_of(content.decode(), self._topic), at_work=self._at_work(batches.open_batch)
        )

    def _file_names(self, folder: str) -> list[str]:
        entries = self._place.entries(folder)
        return [each.path.rpartition("/")[2] for each in entries if not each.folder]

    def _at_work(self, open_batch: int | None) -> str:
        """Return a sentence if the query can be running, or can have written `open_batch`."""
        if not self._stopped:
            return (
                f"The files in {self._place} do not show whether the query is running: stop it, "
                "and add --stopped."
            )
        if open_batch is not None:
            return (
                f"Batch {open_batch} of the query in {self._place} was started but not completed, "
                "so its records may have been written. Run the query until it has caught up, and "
                "stop it; or add --live to read this batch again here."
            )
        return ""
