"""Where a consumer stands with one shard: one pure state machine for runs, workers and clients.

    INITIALIZING --initialized--> PROCESSING --stop--> STOPPING --stopped--> STOP_COMPLETED
         \\_______________________stop____________________/

A consumer that can no longer persist (its tenure is over, or its trust has ended)
is `fenced`. It takes the same way out, but saves nothing on it: its work since its last
checkpoint belongs to the next holder.

Why a stop that comes while a shard is still being initialized must not be lost:

1. The worker's thread calls the user's `initialize`, which takes long.
2. The beat's thread learns that the shard is in transfer, and asks the consumer to stop.
3. `initialize` returns. A machine that went to PROCESSING now would read on, and the next holder
   would wait for a deadline. Here `initialized` leaves STOPPING as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class ConsumerState(StrEnum):
    """The states; a processor's author can know the last two by their other names."""

    INITIALIZING = "initializing"
    PROCESSING = "processing"
    STOPPING = "stopping"
    STOP_COMPLETED = "stop_completed"
    SHUTTING_DOWN = STOPPING
    SHUTDOWN_COMPLETE = STOP_COMPLETED


@dataclass(frozen=True, slots=True)
class ShardConsumer:
    """One shard's consumer: its state, why it stops, and whether it can still persist.

    Attributes:
        fenced: its tenure is over, or not to be relied on: nothing can be persisted under it.
        reason: why it stops; empty until it does. The first reason stays.
    """

    state: ConsumerState = ConsumerState.INITIALIZING
    fenced: bool = False
    reason: str = ""

    @property
    def reported(self) -> bool:
        """True while the shard is to be named as held: until everything about it has ended."""
        return self.state is not ConsumerState.STOP_COMPLETED

    def initialized(self) -> ShardConsumer:
        """Begin to process: the tenure is open and the user's code ready; an earlier stop stays."""
        if self.state is ConsumerState.INITIALIZING:
            return replace(self, state=ConsumerState.PROCESSING)
        return self

    def stop(self, reason: str) -> ShardConsumer:
        """Stop at the next batch boundary, with the checkpoint saved."""
        if self.state in (ConsumerState.INITIALIZING, ConsumerState.PROCESSING):
            return replace(self, state=ConsumerState.STOPPING, reason=reason)
        return self

    def fence(self, reason: str) -> ShardConsumer:
        """Stop without saving anything; one that is stopping already may not save from now on."""
        if self.state is ConsumerState.STOP_COMPLETED:
            return self
        return replace(self.stop(reason), fenced=True)

    def stopped(self) -> ShardConsumer:
        """Complete the stop: all is saved that can be, and the user's code has been shut down.

        Raises:
            ValueError: the consumer was not asked to stop.
        """
        if self.state in (ConsumerState.INITIALIZING, ConsumerState.PROCESSING):
            raise ValueError(f"A consumer in state {self.state} cannot have stopped.")
        return replace(self, state=ConsumerState.STOP_COMPLETED)
