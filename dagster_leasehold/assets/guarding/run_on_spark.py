"""The use of Spark by one run: its session, the watch over its jobs, and their interruption."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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


@dataclass(kw_only=True, eq=False)
class RunOnSpark:
    """The sessions and jobs of one run.

    Attributes:
        renewed: returns a new session after a session was lost, or None if this process cannot
            have one.
        work: the work of the run, as part of a sentence, such as `stream orders`.
        where: the mode or address of Spark, for messages.
        must_stop: polled while a job runs; the job is interrupted once it returns True.
        starved_after_s: the time without a running task after which the run warns, in seconds.
        warn: logs a warning of the run.
        ended: returns True if another run has certainly ended.
        hung: True once a job was abandoned that Spark can still execute.
        starved: True while no task of the jobs runs, probably because Spark has no free core.
    """

    session: Callable[[], SparkSession]
    run: str
    work: str
    renewed: Callable[[], SparkSession | None] = lambda: None
    where: str = ""
    must_stop: Callable[[], bool] = lambda: False
    progressed: Callable[[], None] = lambda: None
    starved_after_s: float = STARVED_AFTER_S
    warn: Callable[[str], None] = _LOG.warning
    ended: Callable[[str], bool] = lambda _: False
    hung: bool = field(default=False, init=False)
    starved: bool = field(default=False, init=False)
    watch: JobWatch = field(init=False)
    _opened: SparkSession | None = field(default=None, init=False)
    _predecessors: set[str] = field(default_factory=set[str], init=False)

    def __post_init__(self) -> None:
        self.watch = JobWatch(
            tag=run_tag(self.run),
            work=self.work,
            must_stop=self.must_stop,
            progressed=self.progressed,
            starved=self._note_starved,
            starved_after_s=self.starved_after_s,
        )

    def open(self) -> SparkSession:
        """Return the session, after interrupting the jobs of earlier runs."""
        with span("session"):
            session = self._opened = self.session()
        self._interrupt_predecessors(session)
        return session

    def renew(self) -> SparkSession | None:
        """Return a new session after a session was lost, or None if none is possible."""
        with span("session"):
            session = self.renewed()
        self._opened = session or self._opened
        return session

    @property
    def awaited(self) -> str:
        """The answer that a job waits for, as part of a sentence."""
        return f"a free core of {self._spark}" if self.starved else "Spark"

    @property
    def _spark(self) -> str:
        return f"Spark ({self.where})" if self.where else "Spark"

    def add_predecessor(self, run: str) -> None:
        """Record an earlier run whose job can still run.

        1. A run is killed, or its host dies, in the middle of a Spark job.
        2. The Connect server continues the job, which uses cores and writes files that the ledger
           never names.
        3. This run continues the work of the earlier run, and reads its id.
        4. If the earlier run has certainly ended, this run interrupts its job in the session that
           runs share. If the earlier run had its own session, the server ends the job by itself.
        """
        self._predecessors.add(run)

    def _interrupt_predecessors(self, session: SparkSession) -> None:
        while self._predecessors:
            run = self._predecessors.pop()
            # An interruption only frees cores sooner.
            with suppress(Exception):
                if self.ended(run):
                    session.interruptTag(run_tag(run))

    def mark_hung(self) -> None:
        """Record that a job was abandoned."""
        self.hung = True

    def _note_starved(self, starved: bool) -> None:
        self.starved = starved
        if not starved:
            return
        sentence = (
            f"{self._spark} has run no task of {self.watch.work} for "
            f"{self.watch.starved_after_s:g} s, as if it had no free core: add workers, or give "
            "other applications fewer cores. The run waits for stall_limit_s at most."
        )
        # On a separate thread: logging can hang, and the watch must continue.
        threading.Thread(target=self.warn, args=(sentence,), name="warn", daemon=True).start()

    def abandon(self, *, ours: bool = True) -> bool:
        """Interrupt the jobs that still run; return True if Spark answers and works.

        If the server is `ours`, it must also complete a small job, because a server accepts an
        interruption even if its Python workers stall. Any other Spark must only accept the
        interruption.
        """
        session = self._opened
        if session is None:
            return False
        answered = threading.Event()

        def interrupt() -> None:
            with suppress(Exception):
                session.interruptTag(self.watch.tag)
                if ours:
                    # Without a tag: the watch over the abandoned job keeps interrupting its tag.
                    session.range(1).mapInArrow(_as_they_are, "id bigint").collect()
                answered.set()

        threading.Thread(target=interrupt, name=f"abandon {self.watch.tag}", daemon=True).start()
        return answered.wait(ABANDON_S if ours else INTERRUPT_S)


@contextmanager
def guarded_run(
    spark: SparkResource,
    guard: StallGuard,
    *,
    run: str,
    work: str,
    warn: Callable[[str], None],
    ended: Callable[[str], bool],
    starved_after_s: float,
) -> Generator[RunOnSpark]:
    """Use Spark for the work of a run while its guard waits.

    If the work was abandoned, its jobs are interrupted at the end of the block, after the run has
    released its shards, so that the next run finds no stalled Spark.
    """
    on_spark = RunOnSpark(
        session=lambda: spark.spark_session,
        renewed=spark.renewed_session,
        run=run,
        work=work,
        where=spark.mode,
        must_stop=lambda: guard.ending,
        progressed=guard.progressed,
        starved_after_s=starved_after_s,
        warn=warn,
        ended=ended,
    )
    try:
        yield on_spark
    finally:
        stalled = guard.stalled is not None or on_spark.hung
        if stalled and not on_spark.abandon(ours=spark.mode == CONNECT) and spark.end_server():
            _LOG.warning("Spark's server did not answer within %g s and was ended", ABANDON_S)


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
