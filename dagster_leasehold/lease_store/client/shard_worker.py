"""One shard of a processor worker, on its way through the states of `ShardConsumer`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from dagster_leasehold.lease_store import errors
from dagster_leasehold.lease_store.client.feed import Fetched, Record, ShardFeed
from dagster_leasehold.lease_store.client.group_member import GroupMember
from dagster_leasehold.lease_store.client.starting import cursor_after_gap, starting_cursor
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.outcomes import Opened
from dagster_leasehold.lease_store.rules.consumer_lifecycle import ConsumerState, ShardConsumer
from dagster_leasehold.lease_store.rules.failing_steps import retry_wait_s
from dagster_leasehold.lease_store.rules.liveness import Clock
from dagster_leasehold.lease_store.shard_rows import Tenure

_LOG = logging.getLogger(__name__)
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 60.0
SHARD_OVER = "the shard is over"
WENT_ELSEWHERE = "it went elsewhere before it was opened"


class Processor(Protocol):
    """The user's code for one shard."""

    def initialize(self, shard: ShardId, cursor: str) -> None:
        """Called before the first record; reading begins at `cursor`."""
        ...

    def process(self, records: tuple[Record, ...]) -> str | None:
        """Deal with some records, in order.

        Returns:
            None: they are done; the checkpoint moves past them. A cursor: reading goes on there.
            One of this batch takes its rest back: what comes before counts as done. An earlier
            one takes all of it back, and brings records again that were done before; the
            checkpoint stays where it is until they have been done once more.
        """
        ...

    def shutdown(self) -> None:
        """Called once, after the last record, if `initialize` returned."""
        ...


@dataclass(slots=True)
class ShardWorker:
    """Opens a shard, gives its records to a processor, and lets it go.

    `advance` is called by the worker's thread; `stop` and `fence` by that of the beats, too.
    """

    shard: ShardId
    member: GroupMember
    feed: ShardFeed
    new_processor: Callable[[ShardId], Processor]
    records_max: int
    clock: Clock
    _lock: Lock = field(default_factory=Lock)
    _consumer: ShardConsumer = field(default_factory=ShardConsumer)
    _processor: Processor | None = None
    _opened: Opened | None = None
    # Reading goes on at `position`; up to `done` everything was done. They differ only while
    # a processor has records brought back.
    _position: str = ""
    _done: str = ""
    _over: bool = False
    _failures: int = 0
    _retry_at: float = float("-inf")

    @property
    def state(self) -> ConsumerState:
        """The state of the shard."""
        return self._consumer.state

    @property
    def reported(self) -> bool:
        """True while the shard is to be named as held."""
        return self._consumer.reported

    @property
    def opened(self) -> bool:
        """True once a tenure was begun."""
        return self._opened is not None

    @property
    def _tenure(self) -> Tenure | None:
        return self._opened.tenure if self._opened else None

    def stop(self, reason: str) -> None:
        """Stop at the next batch boundary."""
        with self._lock:
            self._consumer = self._consumer.stop(reason)

    def fence(self, reason: str) -> None:
        """Stop, and save nothing any more."""
        with self._lock:
            self._consumer = self._consumer.fence(reason)

    def advance(self) -> bool:
        """Do what comes next; return True if there was anything to do."""
        if self.state is ConsumerState.STOPPING:
            return self._wind_up()
        if self.state is ConsumerState.STOP_COMPLETED or self.clock() < self._retry_at:
            return False
        try:
            busy = self._initialize() if self.state is ConsumerState.INITIALIZING else self._read()
            self._failures = 0
        except (errors.LeaseLost, errors.ShardNotOpen) as error:
            _LOG.warning("Shard %s: %s", self.shard, error)
            self.fence(str(error))
        except errors.LeaseholdError as error:
            _LOG.warning("Shard %s is tried again: %s", self.shard, error)
            self._retry_later()
        except Exception:
            _LOG.exception("The processor of shard %s failed: it is tried again", self.shard)
            self._retry_later()
        else:
            return busy
        return True

    def _retry_later(self) -> None:
        self._failures += 1
        wait_s = retry_wait_s(self._failures, first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        self._retry_at = self.clock() + wait_s

    def _initialize(self) -> bool:
        if self._opened is None:
            opened = self.member.open(self.shard)
            if not isinstance(opened, Opened):
                self.stop(WENT_ELSEWHERE)
                return False
            self._opened = opened
        self._done = starting_cursor(self.member, self.feed, self.shard, self._opened, None)
        self._position = self._done
        processor = self.new_processor(self.shard)
        processor.initialize(self.shard, self._position)
        self._processor = processor
        with self._lock:
            self._consumer = self._consumer.initialized()
        return True

    def _read(self) -> bool:
        self.member.require(self.shard, self._tenure)
        fetched = self._fetch()
        if fetched.records:
            assert self._processor is not None
            self._settle(fetched, self._processor.process(fetched.records))
        elif self._position == self._done != fetched.end:
            # Some logs renew the cursor of an idle shard, which else ages with its records.
            self._settle(fetched, None)
        else:
            self._position = self._done
        if fetched.last and self._position == self._done == fetched.end:
            self._over = True
            self.stop(SHARD_OVER)
        return bool(fetched.records) or self._over

    def _fetch(self) -> Fetched:
        try:
            if self._position == self._done:
                return self.feed.fetch(self.shard, self._position, records_max=self.records_max)
            return self.feed.fetch_between(
                self.shard, self._position, self._done, records_max=self.records_max
            )
        except (errors.CursorExpired, errors.CursorInvalid) as error:
            if self._position == self._done:
                if isinstance(error, errors.CursorInvalid):
                    raise
                self._done = cursor_after_gap(self.member, self.feed, self.shard, self._done)
            else:
                # Everything up to `done` is done: only its repetition is not to be had.
                _LOG.warning("Shard %s cannot go back: %s", self.shard, error)
            self._position = self._done
            return Fetched(self._done, self._done)

    def _settle(self, fetched: Fetched, wanted: str | None) -> None:
        """Move on after a batch, or back to where the processor wants to be."""
        repeating = self._position != self._done
        self._position = fetched.end if wanted is None else wanted
        of_batch = {fetched.end, *(record.cursor for record in fetched.records)}
        if not repeating and self._position in of_batch:
            self._done = self._position
            self.member.save_checkpoint(self.shard, self._done, tenure=self._tenure)

    def _wind_up(self) -> bool:
        """Shut the processor down, save, and end the tenure; tried again if the store is away."""
        processor, self._processor = self._processor, None
        if processor is not None:
            try:
                processor.shutdown()
            except Exception:
                _LOG.exception("The processor of shard %s did not shut down", self.shard)
        if self._tenure is not None and not self._consumer.fenced:
            try:
                if self._over:
                    self.member.finish(self.shard, self._done)
                else:
                    self.member.release(self.shard)
            except (errors.LeaseLost, errors.ShardNotOpen) as error:
                _LOG.warning("Shard %s: %s", self.shard, error)
                self.fence(str(error))
            except errors.StoreError as error:
                _LOG.warning("Shard %s is not let go of yet: %s", self.shard, error)
                return False
        with self._lock:
            self._consumer = self._consumer.stopped()
        return True
