"""The state of a consumer of one shard: a pure state machine for runs, workers and clients.

    INITIALIZING --initialized--> PROCESSING --stop--> STOPPING --stopped--> STOP_COMPLETED
         \\_______________________stop____________________/

A consumer whose tenure or trust has ended is `fenced`: it stops like any other, but saves nothing,
because the next holder repeats its work since the last checkpoint.

A stop that arrives while a shard is being initialized must not be lost:

1. The worker's thread calls the user's `initialize`, which takes long.
2. The heartbeat thread finds the shard in transfer, and stops the consumer.
3. `initialize` returns. If the state became PROCESSING now, the next holder would have to wait for
   the deadline. So `initialized` does not change STOPPING.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class ConsumerState(StrEnum):
    """The states; the last two names are aliases."""

    INITIALIZING = "initializing"
    PROCESSING = "processing"
    STOPPING = "stopping"
    STOP_COMPLETED = "stop_completed"
    SHUTTING_DOWN = STOPPING
    SHUTDOWN_COMPLETE = STOP_COMPLETED


@dataclass(frozen=True, slots=True)
class ShardConsumer:
    """One shard's consumer.

    Attributes:
        fenced: its tenure or trust has ended, so it saves nothing.
        reason: the first reason to stop; empty until then.
    """

    state: ConsumerState = ConsumerState.INITIALIZING
    fenced: bool = False
    reason: str = ""

    @property
    def reported(self) -> bool:
        """True until the consumer has stopped: heartbeats name the shard as held."""
        return self.state is not ConsumerState.STOP_COMPLETED

    def initialized(self) -> ShardConsumer:
        """Begin to process, unless the consumer was stopped earlier."""
        if self.state is ConsumerState.INITIALIZING:
            return replace(self, state=ConsumerState.PROCESSING)
        return self

    def stop(self, reason: str) -> ShardConsumer:
        """Stop at the next batch boundary, and save the checkpoint."""
        if self.state in (ConsumerState.INITIALIZING, ConsumerState.PROCESSING):
            return replace(self, state=ConsumerState.STOPPING, reason=reason)
        return self

    def fence(self, reason: str) -> ShardConsumer:
        """Stop without saving, even if the consumer was stopping already."""
        if self.state is ConsumerState.STOP_COMPLETED:
            return self
        return replace(self.stop(reason), fenced=True)

    def stopped(self) -> ShardConsumer:
        """Complete a stop, after the user's code was shut down; otherwise raise ValueError."""
        if self.state in (ConsumerState.INITIALIZING, ConsumerState.PROCESSING):
            raise ValueError(f"A consumer in state {self.state} cannot have stopped.")
        return replace(self, state=ConsumerState.STOP_COMPLETED)
