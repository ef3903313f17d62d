"""Spark as one run uses it: its session, the watch over its jobs, and the jobs left at work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dagster_leasehold.assets.guarding.job_watch import STARVED_AFTER_S, JobWatch
from dagster_leasehold.assets.guarding.stall_guard import StallGuard
from dagster_leasehold.assets.spark.spark_settings import CONNECT
from dagster_leasehold.lease_store.tracing import span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from dagster_leasehold.assets.spark.spark_resource import SparkResource

_LOG = logging.getLogger(__name__)

ABANDON_S = 60.0
INTERRUPT_S = 5.0


def run_tag(run: str) -> str:
    """Return the tag of a run's Spark jobs: interrupting it ends them from any process."""
    # Spark takes any tag without a comma.
    return f"leasehold-{run.replace(',', '-')}"


class RunOnSpark:
    """The sessions and jobs of one run.

    Args:
        session: gives the Spark session; called whenever one is opened.
        renewed: gives another one in place of a session that is gone, or None where there can be
            none in this process.
        run: the id of the run, for the tag of its jobs.
        work: the work of the run, as part of a sentence: `stream orders`.
        where: the mode or address of Spark, for messages.
        doomed: asked while a job runs; once it is true, the job is interrupted.
        progressed: called while a job makes progress.
        starved_after_s: the seconds without a running task after which the run says so.
        tell: takes a sentence for readers of the run's log.
        ended: tells if another run is known to have ended.

    Attributes:
        hung: True once a job was given up that Spark can still be at work on.
    """

    def __init__(
        self,
        *,
        session: Callable[[], SparkSession],
        run: str,
        work: str,
        renewed: Callable[[], SparkSession | None] = lambda: None,
        where: str = "",
        doomed: Callable[[], bool] = lambda: False,
        progressed: Callable[[], None] = lambda: None,
        starved_after_s: float = STARVED_AFTER_S,
        tell: Callable[[str], None] = _LOG.warning,
        ended: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.run = run
        self.watch = JobWatch(
            tag=run_tag(run),
            work=work,
            doomed=doomed,
            progressed=progressed,
            starved=self._note_starved,
            starved_after_s=starved_after_s,
        )
        self._session = session
        self._renewed = renewed
        self._opened: SparkSession | None = None
        self._where = f"Spark ({where})" if where else "Spark"
        self._starved = False
        self.hung = False
        self._tell = tell
        self._ended = ended
        self._predecessors: set[str] = set()

    def open(self) -> SparkSession:
        """Return the session, after interrupting what predecessors left at work."""
        with span("session"):
            session = self._opened = self._session()
        self._interrupt_predecessors(session)
        return session

    def renew(self) -> SparkSession | None:
        """Return a session in place of one that is gone, or None where there can be none."""
        with span("session"):
            session = self._renewed()
        self._opened = session or self._opened
        return session

    @property
    def starved(self) -> bool:
        """True while no task of the jobs runs, as if Spark had no free core."""
        return self._starved

    @property
    def awaited(self) -> str:
        """The answer that a job waits for, as part of a sentence."""
        return f"a free core of {self._where}" if self._starved else "Spark"

    def succeed(self, run: str) -> None:
        """Take note of an earlier run that left work unfinished.

        1. A run is killed, or its host dies, in the middle of a Spark job.
        2. The Connect server continues with the job: it holds cores, and writes files that nothing
           names.
        3. This run takes the work up, and finds whose it was.
        4. If the other run is known to have ended, its job is interrupted, in the session that
           runs share. In a session of its own, a Connect server ends what no client asks for.
        """
        self._predecessors.add(run)

    def _interrupt_predecessors(self, session: SparkSession) -> None:
        while self._predecessors:
            run = self._predecessors.pop()
            # It only frees cores sooner.
            with suppress(Exception):
                if self._ended(run):
                    session.interruptTag(run_tag(run))

    def note_hung(self) -> None:
        """Take note of a job that was given up."""
        self.hung = True

    def _note_starved(self, starved: bool) -> None:
        self._starved = starved
        if not starved:
            return
        sentence = (
            f"{self._where} has run no task of {self.watch.work} for "
            f"{self.watch.starved_after_s:g} s, as if it had no free core: add workers, or give "
            "other applications fewer cores. The run waits, for stall_limit_s at most."
        )
        # On a thread of its own: the receiver can hang, and the job must be watched.
        threading.Thread(target=self._tell, args=(sentence,), name="tell", daemon=True).start()

    def abandon(self, *, ours: bool = True) -> bool:
        """Interrupt the jobs that still run; return True if Spark answers and works.

        If the server is `ours`, it is asked for a small job of its own, because a Spark whose
        Python workers stall takes an interruption like any other. A busy one can take a
        while. From another Spark nothing is expected but to take the interruption.
        """
        session = self._opened
        if session is None:
            return False
        answered = threading.Event()

        def ask() -> None:
            with suppress(Exception):
                session.interruptTag(self.watch.tag)
                if ours:
                    # Under no tag: a watch over the given-up job keeps interrupting its tag.
                    session.range(1).mapInArrow(_as_they_are, "id bigint").collect()
                answered.set()

        threading.Thread(target=ask, name=f"abandon {self.watch.tag}", daemon=True).start()
        return answered.wait(ABANDON_S if ours else INTERRUPT_S)


@contextmanager
def guarded_run(
    spark: SparkResource,
    guard: StallGuard,
    *,
    run: str,
    work: str,
    tell: Callable[[str], None],
    ended: Callable[[str], bool],
    starved_after_s: float,
) -> Generator[RunOnSpark]:
    """Use Spark for the work of a run as long as its guard waits.

    At the end of the block all that the run held is free again: only then what it leaves at work is
    interrupted, if it was given up, so that the next run finds no stalled Spark.
    """
    on_spark = RunOnSpark(
        session=lambda: spark.spark_session,
        renewed=spark.renewed_session,
        run=run,
        work=work,
        where=spark.mode,
        doomed=lambda: guard.ending,
        progressed=guard.progressed,
        starved_after_s=starved_after_s,
        tell=tell,
        ended=ended,
    )
    try:
        yield on_spark
    finally:
        stalled = guard.stalled is not None or on_spark.hung
        if stalled and not on_spark.abandon(ours=spark.mode == CONNECT) and spark.end_server():
            _LOG.warning("Spark's server did not answer within %g s: it was ended", ABANDON_S)


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
