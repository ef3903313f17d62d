"""A thread that repeats a client's heartbeat while its caller works, polls or sleeps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dagster_leasehold.lease_store.errors import LeaseholdError, UserMistake
from dagster_leasehold.lease_store.heartbeat import RETRIES_PER_BEAT

_LOG = logging.getLogger(__name__)
# Two heartbeats fit into one interval between beats, so that a change is noticed sooner; the
# beat itself, which writes a row, is due at every second one.
HEARTBEATS_PER_BEAT = 1 / 0.45


class BackgroundBeats:
    """Calls `beat` about twice in each `beat_s` seconds, until stopped.

    A store that does not answer is asked again soon. A mistake that only a person can put right
    (the name is taken, the settings contradict another member's) is kept in `problem` for the
    client's next call, and tried again at the usual interval.
    """

    def __init__(self, beat: Callable[[], None], beat_s: Callable[[], float], name: str) -> None:
        self._beat = beat
        self._beat_s = beat_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"beats-{name}", daemon=True)
        self.problem: UserMistake | None = None

    def start(self) -> None:
        """Begin; the first beat comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present beat, and wait for that."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        answered = True
        while not self._stopping.wait(self._pause_s(answered=answered)):
            answered = self._try()

    def _pause_s(self, *, answered: bool) -> float:
        return self._beat_s() / (HEARTBEATS_PER_BEAT if answered else RETRIES_PER_BEAT)

    def _try(self) -> bool:
        """Beat once; return True if the next beat may wait for the usual interval."""
        try:
            self._beat()
        except UserMistake as error:
            self.problem = error
        except LeaseholdError as error:
            _LOG.warning("A heartbeat got no answer: %s", error)
            return False
        except Exception:
            # An error of a driver's or a feed's must not end the beating unseen.
            _LOG.exception("A heartbeat failed")
            return False
        else:
            self.problem = None
        return True
