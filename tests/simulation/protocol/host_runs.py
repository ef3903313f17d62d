"""The runs on a simulated host: launched, beating, consuming, and trusting its clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dagster_leasehold.lease_store.errors import StoreError
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchStatistics, DataFile
from dagster_leasehold.lease_store.node_planning import NodePlanner
from dagster_leasehold.lease_store.shard_rows import Progress
from tests.simulation.protocol.parts import Run, WrittenRange
from tests.simulation.protocol.ports import Surroundings
from tests.simulation.protocol.schedule import Process, Schedule
from tests.simulation.protocol.stage import Stage
from tests.simulation.protocol.waiting_runs import Waits


@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's monotonic clock: its own zero, and its own idea of a second."""

    schedule: Schedule
    offset: float
    rate: float

    @classmethod
    def drawn(cls, stage: Stage) -> HostClock:
        """Return a clock that is as wrong as the seed will have it."""
        offset = stage.chance.uniform(0, 1e6)
        rate = 1.0 + stage.rates.clock_rate_error * stage.chance.uniform(-1, 1)
        return cls(stage.schedule, offset, rate)

    def __call__(self) -> float:
        """Return the seconds that it shows."""
        return self.offset + self.schedule.now * self.rate

    def virtual(self, reading: float) -> float:
        """Return the virtual time of a reading."""
        return (reading - self.offset) / self.rate


class HostRuns:
    """The runs that were launched on one host.

    Args:
        world: the world around the host.
        clock: the host's clock.
        stop_requested: returns True if the host's runs should stop.
    """

    def __init__(
        self, world: Surroundings, clock: HostClock, stop_requested: Callable[[], bool]
    ) -> None:
        self._world = world
        self._stage = world.stage
        self._clock = clock
        self._stop_requested = stop_requested
        self._runs: list[Run] = []

    def alive(self) -> list[Run]:
        """Return the runs that were not killed and have not ended."""
        self._runs = [run for run in self._runs if not run.dead]
        return self._runs

    def kill(self) -> None:
        """End all of them at once."""
        for run in self.alive():
            run.process.dead = True

    def trust_windows(self, node: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        """Return the virtual times until which each run of an incarnation trusts itself.

        With `ended`, runs that have ended count as well: their window was given to them all the
        same, and only chance ended them before it did.
        """
        return [
            self._clock.virtual(run.heartbeat.trusted_until)
            for run in self._world.runs.values()
            if (run.node, run.incarnation) == (node, incarnation)
            and (ended or not run.dead)
            and not run.heartbeat.lost.is_set()
        ]

    def worth_a_run(
        self, progress: Progress, replaces: dict[ShardId, str], starting: Collection[ShardId]
    ) -> bool:
        """Return True if a shard has unread records and no run reads it.

        A run that has ended without closing the shard is added to `replaces`.
        """
        stage = self._stage
        if progress.consumer_run:
            run = self._world.runs.get(progress.consumer_run)
            mistaken = stage.chance.random() < stage.rates.wrong_verdict / 10
            if run is not None and not run.dead and not mistaken:
                return False
            replaces[progress.shard] = progress.consumer_run
        elif any(run.will_open(progress.shard) for run in self.alive()):
            return False
        shard = stage.log.shards[progress.shard]
        starts = progress.shard in starting
        return starts or shard.read_only or shard.end > int(progress.check_point or 0)

    def offer(self, node: NodeName, shards: Sequence[ShardId]) -> bool:
        """Offer shards to a run of their node that follows; return False where there is none."""
        for run in self.alive():
            if run.node == node and run.waits is not None and not run.waits.ending:
                run.waits.offer(shards)
                return True
        return False

    def ask_back(self, shard: ShardId) -> None:
        """Ask following runs to release a shard, as a manual materialization does."""
        for run in self.alive():
            if run.waits is not None:
                run.waits.ask_back(shard)

    def launch(
        self,
        node: NodeName,
        shards: tuple[ShardId, ...],
        replaces: Mapping[ShardId, str],
        incarnation: str,
        *,
        follows: bool = True,
    ) -> None:
        """Start a run that consumes shards for a node, some time from now.

        Where the group's runs follow their shards, this one does with `follows`.
        """
        world, stage = self._world, self._stage
        process = Process(f"run-{len(world.runs) + 1}")
        store = world.connect(process)
        run = Run(
            process=process,
            store=store,
            key=stage.key,
            node=node,
            incarnation=incarnation,
            shards=shards,
            replaces=dict(replaces),
            heartbeat=world.parts.heartbeat(
                store, stage.key, Node(node, 0, incarnation), stage.timing, self._clock
            ),
            clock=self._clock,
            log=stage.log,
            read=lambda ranges: self._read(process, ranges),
            stop_requested=self._stop_requested,
            pinned=stage.pinned,
            acknowledge=lambda commits: world.watch.acknowledge(process, commits),
            say=world.watch.hear,
        )
        if follows and stage.pace is not None:
            sleep = self._sleep
            run.waits = Waits(run, stage.pace, sleep, stage, awaited=set(shards))
            run.planner = NodePlanner(
                store,
                stage.key,
                node,
                observer=run.name,
                clock=self._clock,
                rebalancer=world.parts.rebalancer,
            )
        world.runs[run.name] = run
        self._runs.append(run)
        delay_s = stage.chance.uniform(0.5, 2.0) * stage.unit_s
        stage.schedule.spawn(process, lambda: self._work(run), delay_s)

    def _sleep(self, seconds: float) -> None:
        """Sleep for seconds of the host's clock."""
        self._stage.schedule.sleep(seconds / self._clock.rate)

    def _work(self, run: Run) -> None:
        world = self._world
        try:
            pause_s = run.heartbeat.attempt()
            world.watch.beaten(run.node, run.incarnation)
            self._stage.schedule.spawn(run.process, lambda: self._beat(run), pause_s)
            world.parts.consume(run)
        except StoreError as error:
            world.watch.hear(str(error))  # A run that cannot continue ends; its launcher sees that.
        finally:
            world.watch.hear(run.heartbeat.reason)
            run.process.dead = True

    def _beat(self, run: Run) -> None:
        while not run.heartbeat.lost.is_set():
            pause_s = run.heartbeat.attempt()
            self._world.watch.beaten(run.node, run.incarnation)
            if not run.heartbeat.trusted:
                return
            self._stage.schedule.sleep(pause_s)

    def _read(
        self, process: Process, ranges: Iterable[tuple[ShardId, str, str]]
    ) -> dict[ShardId, WrittenRange]:
        """Read and write: it takes its time, and its files belong to this attempt alone."""
        stage, written = self._stage, self._stage.written
        seconds = stage.chance.uniform(0.2, 2.0)
        if stage.chance.random() < stage.rates.slow_batch:
            seconds = stage.chance.uniform(2.0, 90.0)
        stage.sleep(seconds)
        results: dict[ShardId, WrittenRange] = {}
        for shard, start, end in ranges:
            attempt = f"{process.name}/{len(written)}"
            path = f"{attempt}/{shard}.parquet"
            assert path not in written
            written[path] = (shard, start, end)
            records = int(end) - int(start)
            results[shard] = WrittenRange(
                attempt, (DataFile(path, records, records),), BatchStatistics(records=records)
            )
        return results
