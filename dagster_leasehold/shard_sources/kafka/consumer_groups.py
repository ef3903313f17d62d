"""The committed offsets of Kafka's consumer groups: like checkpoints, those of the next records."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup, listed, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress
from dagster_leasehold.shard_sources.kafka.client import KafkaClient
from dagster_leasehold.shard_sources.positions import parse_offset

IDLE_STATES = ("EMPTY", "DEAD")


class KafkaConsumerGroup:
    """A consumer group of Kafka, limited to the topic of a client."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._client = client
        self._name = name

    def exists(self) -> bool:
        """Return True if Kafka has the group."""
        return self._name in self._states()

    def progress(self) -> GroupProgress:
        """Return the group's committed offsets in the topic; see `OtherConsumers`."""
        states = self._states()
        if self._name not in states:
            raise UnknownGroup(
                f"Kafka has no consumer group {shown(self._name)}; its groups are: "
                f"{listed(sorted(states))}."
            )
        # Members are read before offsets, so the offsets include the last commit of every member
        # that has left.
        at_work = self._at_work(states[self._name])
        committed = self._committed()
        if self._client.topic not in committed:
            raise UnknownGroup(
                f"Kafka's group {shown(self._name)} has no committed offset in topic "
                f"{self._client.topic}; it has offsets in: {listed(sorted(committed))}."
            )
        offsets = committed[self._client.topic]
        partitions = map(str, self._client.partitions())
        return GroupProgress(
            cursors={ShardId(str(number)): str(offset) for number, offset in offsets.items()},
            unstored=[ShardId(number) for number in partitions if int(number) not in offsets],
            at_work=at_work,
        )

    def within(self, cursors: Mapping[ShardId, str]) -> list[ShardId]:
        """Return an empty list, because Kafka can store any offset."""
        del cursors
        return []

    def store(self, cursors: Mapping[ShardId, str], *, timeout_s: float, ordered: bool) -> None:
        """Commit these offsets for the group, which must have no members."""
        del timeout_s, ordered  # decided by the consumers that join the group
        if refusal := self.commit(cursors):
            raise CheckpointRefused(
                f"Kafka did not store the checkpoints of topic {self._client.topic} for its group "
                f"{shown(self._name)}: {refusal}; stop its consumers first."
            )

    def commit(self, cursors: Mapping[ShardId, str]) -> str:
        """Commit these offsets; return the reason if Kafka refuses, otherwise an empty text."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        partitions = [
            TopicPartition(
                self._client.topic, self._client.partition(shard), parse_offset(shard, cursor)
            )
            for shard, cursor in cursors.items()
        ]
        with self._client.admin(f"group {self._name}") as admin:
            answers = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._name, partitions)],
                request_timeout=self._client.options.timeout_s,
            )
            outcome = answers[self._name].result()
        errors = [part.error for part in outcome.topic_partitions or () if part.error is not None]
        return shown(errors[0].str()) if errors else ""

    def _committed(self) -> dict[str, dict[int, int]]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        with self._client.admin(f"group {self._name}") as admin:
            answers = admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._name)],
                request_timeout=self._client.options.timeout_s,
            )
            partitions = answers[self._name].result().topic_partitions or []
        committed: dict[str, dict[int, int]] = {}
        for each in partitions:
            # A negative offset means that none is committed.
            if each.error is None and each.offset >= 0:
                committed.setdefault(each.topic, {})[each.partition] = each.offset
        return committed

    def _states(self) -> dict[str, str]:
        with self._client.admin("the consumer groups") as admin:
            answer = admin.list_consumer_groups(request_timeout=self._client.options.timeout_s)
            groups = answer.result().valid or []
        return {group.group_id: group.state.name for group in groups}

    def _at_work(self, listed_state: str) -> str:
        # Both answers are needed: old brokers list no states, and brokers describe groups of the
        # newest protocol as dead.
        with self._client.admin(f"group {self._name}") as admin:
            answers = admin.describe_consumer_groups(
                [self._name], request_timeout=self._client.options.timeout_s
            )
            description = answers[self._name].result()
        states = {description.state.name, listed_state.replace("UNKNOWN", "EMPTY")} - {*IDLE_STATES}
        if not states:
            return ""
        members = len(description.members)
        return (
            f"Kafka's group {shown(self._name)} is {' and '.join(sorted(states)).lower()}"
            f"{f' with {members} members' if members else ''}: stop its consumers first, or add "
            "--live to read twice what they read from now on."
        )
