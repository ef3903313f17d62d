"""The consumer state machine, over all orders of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState, ShardConsumer

EVENTS = st.lists(st.sampled_from(["initialized", "stop", "fence", "stopped"]), max_size=12)


def apply(consumer: ShardConsumer, event: str) -> ShardConsumer:
    if event == "initialized":
        return consumer.initialized()
    if event == "stopped":
        if consumer.state in (ConsumerState.INITIALIZING, ConsumerState.PROCESSING):
            with pytest.raises(ValueError):
                consumer.stopped()
            return consumer
        return consumer.stopped()
    return consumer.stop(event) if event == "stop" else consumer.fence(event)


def test_a_consumer_passes_through_all_states():
    consumer = ShardConsumer()
    assert consumer.state is ConsumerState.INITIALIZING
    consumer = consumer.initialized()
    assert consumer.state is ConsumerState.PROCESSING
    assert not consumer.fenced
    consumer = consumer.stop("wanted elsewhere")
    assert consumer.state is ConsumerState.STOPPING
    assert not consumer.fenced
    assert consumer.reported
    consumer = consumer.stopped()
    assert consumer.state is ConsumerState.SHUTDOWN_COMPLETE
    assert not consumer.reported
    assert consumer.reason == "wanted elsewhere"


def test_a_stop_during_initialization_is_not_lost():
    consumer = ShardConsumer().stop("paused").initialized()
    assert consumer.state is ConsumerState.SHUTTING_DOWN
    assert consumer.state is not ConsumerState.PROCESSING


def test_a_loss_while_stopping_takes_the_right_to_save():
    consumer = ShardConsumer().initialized().stop("wanted elsewhere").fence("lost")
    assert consumer.state is ConsumerState.STOPPING
    assert consumer.fenced
    assert consumer.reason == "wanted elsewhere"


@given(EVENTS)
def test_no_order_of_events_returns_to_an_earlier_state_or_right(events: list[str]):
    order = list(ConsumerState)
    consumer = ShardConsumer()
    asked_to_stop = False
    for event in events:
        after = apply(consumer, event)
        asked_to_stop = asked_to_stop or event in ("stop", "fence")
        assert order.index(after.state) >= order.index(consumer.state)
        assert not (consumer.fenced and not after.fenced)
        assert not (after.state is ConsumerState.PROCESSING and asked_to_stop)
        consumer = after
