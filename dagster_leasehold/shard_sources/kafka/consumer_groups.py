"""Offsets of Kafka's own consumer groups: read, and committed for a group without members.

A committed offset is that of the next record to read, as a checkpoint is here.
"""

from __future__ import annotations

from collections.abc import Mapping

from dagster_leasehold.lease_store.errors import CheckpointRefused, UnknownGroup, shown
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.shard_sources.consumer_groups import GroupProgress
from dagster_leasehold.shard_sources.kafka.client import KafkaClient
from dagster_leasehold.shard_sources.positions import parse_offset

IDLE_STATES = ("EMPTY", "DEAD")
NAMES_SHOWN_MAX = 10


class KafkaConsumerGroup:
    """A consumer group of Kafka's, and its committed offsets in one topic.

    Args:
        client: of the cluster and the topic.
        name: of the group.
    """

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._client = client
        self._name = name

    def exists(self) -> bool:
        """Return True if Kafka has the group."""
        return self._name in self._states()

    def progress(self) -> GroupProgress:
        """Return the offsets that the group has committed of the topic; see `OtherConsumers`."""
        states = self._states()
        if self._name not in states:
            names = ", ".join(sorted(states)[:NAMES_SHOWN_MAX]) or "none"
            raise UnknownGroup(
                f"Kafka has no consumer group {shown(self._name)}; the groups there are: {names}."
            )
        # Members first, then offsets: so the offsets include all commits of members that have left.
        at_work = self._at_work(states[self._name])
        committed = self._committed()
        if self._client.topic not in committed:
            topics = ", ".join(sorted(committed)[:NAMES_SHOWN_MAX]) or "none"
            raise UnknownGroup(
                f"Kafka's group {shown(self._name)} has committed nothing of topic "
                f"{self._client.topic}; the topics that it has read are: {topics}."
            )
        offsets = committed[self._client.topic]
        partitions = map(str, self._client.partitions())
        return GroupProgress(
            cursors={ShardId(str(number)): str(offset) for number, offset in offsets.items()},
            unstored=[ShardId(number) for number in partitions if int(number) not in offsets],
            at_work=at_work,
        )

    def within(self, cursors: Mapping[ShardId, str]) -> list[ShardId]:
        """Return no shard: Kafka holds any offset."""
        del cursors
        return []

    def store(self, cursors: Mapping[ShardId, str], *, timeout_s: float, ordered: bool) -> None:
        """Commit these offsets for the group, which must have no members."""
        del timeout_s, ordered  # decided by the consumers that join a group of Kafka's
        offsets = {
            self._client.partition(shard): parse_offset(shard, cursor)
            for shard, cursor in cursors.items()
        }
        if refusal := self.commit(offsets):
            raise CheckpointRefused(
                f"Kafka did not take the checkpoints of topic {self._client.topic} for its group "
                f"{shown(self._name)}: {refusal}; stop its consumers first."
            )

    def commit(self, offsets: Mapping[int, int]) -> str:
        """Commit the offset of the next record to read, for each of these partitions.

        Returns:
            The reason why Kafka refused, in its words; empty where it did not.

        Raises:
            SourceError: no broker answered, or the credentials were refused.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        partitions = [TopicPartition(self._client.topic, *each) for each in offsets.items()]
        with self._client.admin(f"group {self._name}") as admin:
            answers = admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._name, partitions)],
                request_timeout=self._client.options.timeout_s,
            )
            outcome = answers[self._name].result()
        errors = [part.error for part in outcome.topic_partitions or () if part.error is not None]
        return shown(errors[0].str()) if errors else ""

    def _committed(self) -> dict[str, dict[int, int]]:
        """Return the group's committed offsets: by topic, of each partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        with self._client.admin(f"group {self._name}") as admin:
            answers = admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._name)],
                request_timeout=self._client.options.timeout_s,
            )
            partitions = answers[self._name].result().topic_partitions or []
        committed: dict[str, dict[int, int]] = {}
        for each in partitions:
            # A negative offset stands for none.
            if each.error is None and each.offset >= 0:
                committed.setdefault(each.topic, {})[each.partition] = each.offset
        return committed

    def _states(self) -> dict[str, str]:
        """Return the groups that Kafka lists, with the state of each."""
        with self._client.admin("the consumer groups") as admin:
            listed = admin.list_consumer_groups(request_timeout=self._client.options.timeout_s)
            groups = listed.result().valid or []
        return {group.group_id: group.state.name for group in groups}

    def _at_work(self, listed_state: str) -> str:
        # Old brokers list no states, and brokers describe groups of the newest protocol as dead:
        # a group is idle where neither answer says that it is not.
        with self._client.admin(f"group {self._name}") as admin:
            answers = admin.describe_consumer_groups(
                [self._name], request_timeout=self._client.options.timeout_s
            )
            described = answers[self._name].result()
        states = {described.state.name, listed_state.replace("UNKNOWN", "EMPTY")} - {*IDLE_STATES}
        if not states:
            return ""
        members = len(described.members)
        return (
            f"Kafka's group {shown(self._name)} is {' and '.join(sorted(states)).lower()}"
            f"{f' with {members} members' if members else ''}: stop its consumers first, or add "
            "--live to read twice what they read from now on."
        )
