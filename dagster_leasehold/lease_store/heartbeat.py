"""A holder's heartbeat: it keeps the node alive while a run works, and says when to stop.

The process that does the work sends it, so that a process that hangs stops beating, too.

What the trust window prevents:

1. 0 s: the holder sends a beat, and the store counts it.
2. The reply takes 3 s. An observer saw the new counter at 0 s and evicts at T.
3. A holder that counted from the reply would trust itself until 3 s + 0.75 T, perhaps beyond T.
4. Counted from before the beat was sent, its trust ends at 0.75 T, always before T.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Protocol, Self

from dagster_leasehold.lease_store.errors import LeaseholdError, UserMistake
from dagster_leasehold.lease_store.group_rows import Timing
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName
from dagster_leasehold.lease_store.outcomes import Beaten
from dagster_leasehold.lease_store.roles.nodes import Nodes
from dagster_leasehold.lease_store.rules.liveness import Clock, steady_clock

_LOG = logging.getLogger(__name__)
RETRIES_PER_BEAT = 4


class Trust(Protocol):
    """A holder's heartbeat, as far as the loop looks at it."""

    @property
    def trusted(self) -> bool:
        """True if the node may still rely on its leases."""
        ...


def _new_event() -> threading.Event:
    """Return an event of the module `threading` as it is now: virtual time brings its own."""
    return threading.Event()


@dataclass(eq=False)
class Heartbeat:
    """Beats a node's counter every `timing.beat_s` seconds on a thread of its own.

    A context manager: it beats once on entering, and stops on leaving. `trusted` is True
    while the holder may rely on its leases; after that, `lost` is set for good, with the cause in
    `reason`. A holder stops then, without waiting to be told.

    Attributes:
        trusted_until: the moment, on the clock given, at which trust ends unless a beat renews it.
        reason: the reason for which the holder lost its trust; empty while it has not.
    """

    store: Nodes
    key: GroupKey
    node: NodeName
    incarnation: str
    timing: Timing
    clock: Clock = steady_clock
    trusted_until: float = field(default=float("-inf"), init=False)
    reason: str = field(default="", init=False)
    lost: threading.Event = field(default_factory=_new_event, init=False)
    _stopping: threading.Event = field(default_factory=_new_event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    @property
    def trusted(self) -> bool:
        """True if the holder may go on; False for good once `lost` is set."""
        if self.lost.is_set():
            return False
        if self.clock() < self.trusted_until:
            return True
        self._lose("no beat was confirmed in time")
        return False

    def beat(self) -> float:
        """Send one beat; return the seconds until the next one is due.

        A store that does not answer costs no trust by itself: the beat is tried again soon, and
        trust runs out on its own.
        """
        sent_at = self.clock()
        retry_s = self.timing.beat_s / RETRIES_PER_BEAT
        try:
            outcome = self.store.beat(self.key, self.node, self.incarnation)
        except UserMistake as error:
            self._lose(str(error))
            return self.timing.beat_s
        except LeaseholdError as error:
            _LOG.warning("The beat of node %s got no answer: %s", self.node, error)
            return retry_s
        if not isinstance(outcome, Beaten):
            self._lose(f"node {self.node} was evicted, or another process answers to its name")
            return self.timing.beat_s
        # Trust that has run out stays lost: the work that relied on it has been told to stop.
        if not self.lost.is_set():
            self.trusted_until = sent_at + self.timing.trust_s
        return self.timing.beat_s

    def __enter__(self) -> Self:
        pause_s = self.timing.beat_s
        # Without a confirmed beat there is nothing to trust, but a single lost reply is no reason
        # to give up a run that has just been started.
        for _ in range(RETRIES_PER_BEAT):
            pause_s = self.beat()
            if self.lost.is_set() or self.trusted_until > float("-inf"):
                break
            self._stopping.wait(pause_s)
        self._thread = threading.Thread(
            target=self._run, args=(pause_s,), name=f"heartbeat-{self.node}", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=self.timing.beat_s)
            self._thread = None

    def _run(self, pause_s: float) -> None:
        while not self._stopping.wait(pause_s) and not self.lost.is_set():
            try:
                pause_s = self.beat()
            except Exception:
                # An error of the driver's that nobody foresaw must not end the beating unseen.
                _LOG.exception("The beat of node %s failed", self.node)
                pause_s = self.timing.beat_s / RETRIES_PER_BEAT
            if not self.trusted:
                return

    def _lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()
