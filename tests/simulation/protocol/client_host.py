"""A simulated host without Dagster: a plain client that pulls, works and confirms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from typing_extensions import override

from dagster_leasehold.lease_store.client import Fetched, PullClient, PulledBatch, Record
from dagster_leasehold.lease_store.errors import AssignmentConflict, LeaseholdError
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from tests.simulation.protocol.host import Host
from tests.simulation.protocol.parts import BATCH_RECORDS_MAX
from tests.simulation.protocol.ports import Surroundings
from tests.simulation.protocol.schedule import Process
from tests.simulation.protocol.stage import TICK_S, ShardLog

PROTECT_S = 30.0
FLUSH_CHOICES_S = (0.0, 5.0, 12.0)
PERSISTED_AT_ONCE = 0.3


@dataclass(frozen=True, slots=True)
class SimulatedFeed:
    """A simulated log as a client sees it: cursors are the numbers of records."""

    log: ShardLog

    def cursor_at(self, shard: ShardId, position: str) -> str:
        """Return where a position is; a simulated log knows no times."""
        return str(self.log.shards[shard].end) if position == "end" else "0"

    def first_cursor(self, shard: ShardId) -> str:
        """Return where a shard begins."""
        return self.cursor_at(shard, "begin")

    def clamp(self, shard: ShardId, cursor: str) -> str:
        """Return the cursor, or the end of the shard where it lies beyond that."""
        return str(min(int(cursor), self.log.shards[shard].end))

    def fetch(self, shard: ShardId, cursor: str, *, records_max: int) -> Fetched:
        """Read on from a cursor."""
        return self.fetch_between(
            shard, cursor, str(self.log.shards[shard].end), records_max=records_max
        )

    def fetch_between(self, shard: ShardId, start: str, end: str, *, records_max: int) -> Fetched:
        """Read the records `[start, end)`, or the first of them."""
        row = self.log.shards[shard]
        stop = min(int(end), int(start) + records_max)
        records = tuple(
            Record(shard, str(place), str(place + 1), None, None, b"")
            for place in range(int(start), stop)
        )
        return Fetched(start, str(stop), records, row.read_only and stop == row.end)


@dataclass(eq=False)
class Session:
    """One life of a client: its process, and the records that its user has processed.

    Attributes:
        done: the numbers of the processed records, by shard.
        left: True once it shuts down, so that its trust no longer counts.
    """

    process: Process
    client: PullClient
    done: dict[ShardId, set[int]]
    left: bool = False

    def work(self, shard: ShardId, start: str, end: str) -> None:
        """Take the records `[start, end)` for processed."""
        self.done.setdefault(shard, set()).update(range(int(start), int(end)))

    def has_done(self, shard: ShardId, start: str | None, end: str | None) -> bool:
        """Return True if all records of `[start, end)` were processed in this life."""
        return self.done.get(shard, set()).issuperset(range(int(start or 0), int(end or 0)))


class ClientHost(Host):
    """One plain client in the group, whose single thread beats, polls, works and confirms."""

    def __init__(self, world: Surroundings, settings: Node) -> None:
        super().__init__(world, settings)
        self.sessions: list[Session] = []
        self._flush_s = self._stage.chance.choice(FLUSH_CHOICES_S) * self._stage.unit_s

    @override
    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        row = members.get(self.name)
        return bool(row and self.sessions and row.incarnation == self.sessions[-1].process.name)

    @override
    def take_runs(self, name: NodeName, accepts_runs: bool) -> None:
        """Do nothing: a client accepts no runs."""

    @override
    def trust_windows(self, node: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        return [
            self.clock.virtual(session.client.trusted_until)
            for session in self.sessions
            if session.process.name == incarnation
            and not session.left
            and (ended or not session.process.dead)
        ]

    @override
    def start(self, *, registers: bool = False) -> None:
        super().start()  # A client registers itself.

    @override
    def start_server(self) -> None:
        world, stage = self._world, self._stage
        process = Process(self.new_incarnation(self.name))
        client = PullClient(
            world.connect(process),
            stage.key,
            SimulatedFeed(stage.log),
            name=self.name,
            incarnation=process.name,
            clock=self.clock,
            protect_s=PROTECT_S * stage.unit_s,
            flush_s=self._flush_s,
            background=False,
            pause=stage.schedule.sleep,
        )
        session = Session(process, client, {})
        self.sessions.append(session)
        self.begin(process, lambda: self._live(session))

    def _live(self, session: Session) -> None:
        stage, client = self._stage, session.client
        settings = self.settings[self.name]
        while not self._tried(
            lambda: client.start(
                -1 if settings.source_count is None else settings.source_count,
                settings.node_id or 0,
            )
        ):
            if self.leaving:  # It never came in, so there is nothing to leave.
                self.end(session.process)
                return
            stage.sleep(TICK_S)
        beat_due = 0.0
        while not self.leaving:
            if self.clock() >= beat_due:
                beat_due = self.clock() + stage.timing.beat_s * 0.45
                if self.server is not None:
                    # A client has to list the shards if no Dagster host is left.
                    with suppress(LeaseholdError):
                        self.list_shards(self.server)
                self._tried(client.beat)
                self._world.watch.beaten(self.name, session.process.name)
            if not self._consume(session):
                stage.schedule.sleep(min(3.0 * stage.unit_s, stage.timing.beat_s / 4))
        self._shut_down(session)

    def _tried(self, action: Callable[[], object]) -> bool:
        """Do something that the store or another member may refuse; return True if it was done."""
        try:
            action()
        except AssignmentConflict:
            self.refused = True
            return False
        except LeaseholdError as error:
            self._world.watch.hear(str(error))
            return False
        self.refused = False
        return True

    def _consume(self, session: Session) -> bool:
        """Connect new shards, and process one batch; return False if there was none."""
        stage, client = self._stage, session.client
        chance = stage.chance
        connected = client.current_offsets()
        for shard in client.partitions():
            if shard not in connected:
                self._tried(lambda shard=shard: client.connect(shard))
        polled: list[PulledBatch | None] = []
        self._tried(lambda: polled.append(client.poll(records_max=BATCH_RECORDS_MAX)))
        batch = polled[0] if polled else None
        if batch is None:
            return False
        seconds = chance.uniform(0.05, 1.0)
        # Without a thread for beats, a client whose batches outlast the lease gets nowhere.
        if chance.random() < stage.rates.slow_batch and not stage.healed:
            seconds = chance.uniform(2.0, 60.0)
        stage.sleep(seconds)
        session.work(batch.shard, batch.start, batch.end)
        persist = chance.random() < PERSISTED_AT_ONCE
        self._tried(lambda: client.confirm(batch, persist=persist))
        return True

    def _shut_down(self, session: Session) -> None:
        while not self.all_ready_to_leave():
            self._stage.sleep(0.25)
        # Its only thread stops, so trust no longer counts from here on.
        session.left = True
        # If it fails, the remaining nodes notice the silence.
        self._tried(session.client.shutdown)
        self.end(session.process)
