"""A simulated host without Dagster: a plain client that pulls, works and confirms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_leasehold.lease_store.client import Fetched, PullClient, PulledBatch, Record
from dagster_leasehold.lease_store.errors import AssignmentConflict, LeaseholdError
from dagster_leasehold.lease_store.group_rows import Node
from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.simulation.host import BATCH_RECORDS_MAX, TICK_S, Host
from dagster_leasehold.simulation.schedule import Process
from dagster_leasehold.simulation.shard_log import ShardLog

if TYPE_CHECKING:
    from dagster_leasehold.simulation.world import World

PROTECT_S = 30.0
FLUSH_CHOICES_S = (0.0, 5.0, 12.0)
PERSISTED_AT_ONCE = 0.3


@dataclass(frozen=True, slots=True)
class SimulatedFeed:
    """A simulated log as a client sees it: cursors are the numbers of records."""

    log: ShardLog

    def cursor_at(self, shard: ShardId, position: str) -> str:
        """See `ShardFeed.cursor_at`; a simulated log knows no times."""
        return str(self.log.shards[shard].end) if position == "end" else "0"

    def first_cursor(self, shard: ShardId) -> str:
        """See `ShardFeed.first_cursor`."""
        return self.cursor_at(shard, "begin")

    def clamp(self, shard: ShardId, cursor: str) -> str:
        """See `ShardFeed.clamp`."""
        return str(min(int(cursor), self.log.shards[shard].end))

    def fetch(self, shard: ShardId, cursor: str, *, records_max: int) -> Fetched:
        """See `ShardFeed.fetch`."""
        return self.fetch_between(
            shard, cursor, str(self.log.shards[shard].end), records_max=records_max
        )

    def fetch_between(self, shard: ShardId, start: str, end: str, *, records_max: int) -> Fetched:
        """See `ShardFeed.fetch_between`."""
        row = self.log.shards[shard]
        stop = min(int(end), int(start) + records_max)
        records = tuple(
            Record(shard, str(place), str(place + 1), None, None, b"")
            for place in range(int(start), stop)
        )
        return Fetched(start, str(stop), records, row.read_only and stop == row.end)


@dataclass(eq=False)
class Session:
    """One life of a client: its process, and the records that its user has worked through.

    Attributes:
        done: the numbers of the records that were processed, by shard.
        left: it shuts down, so that its trust means nothing any more.
    """

    process: Process
    client: PullClient
    done: dict[ShardId, set[int]]
    left: bool = False

    def work(self, shard: ShardId, start: str, end: str) -> None:
        """The user has processed the records `[start, end)`."""
        self.done.setdefault(shard, set()).update(range(int(start), int(end)))

    def has_done(self, shard: ShardId, start: str | None, end: str | None) -> bool:
        """Whether all records of `[start, end)` were processed in this life."""
        return self.done.get(shard, set()).issuperset(range(int(start or 0), int(end or 0)))


class ClientHost(Host):
    """One plain client in the group, whose single thread beats, polls, works and confirms."""

    def __init__(self, world: World, settings: Node) -> None:
        super().__init__(world, settings)
        self.sessions: list[Session] = []
        self._flush_s = world.schedule.chance.choice(FLUSH_CHOICES_S) * world.unit_s

    def joined(self, members: Mapping[NodeName, Node]) -> bool:
        """See `Host.joined`."""
        row = members.get(self.name)
        return bool(row and self.sessions and row.incarnation == self.sessions[-1].process.name)

    def take_runs(self, name: NodeName, accepts_runs: bool) -> None:
        """A client takes no runs: it is its own."""

    def trust_windows(self, name: NodeName, incarnation: str, *, ended: bool) -> list[float]:
        """See `Host.trust_windows`."""
        del name
        return [
            self.virtual(session.client.trusted_until)
            for session in self.sessions
            if session.process.name == incarnation
            and not session.left
            and (ended or not session.process.dead)
        ]

    def start(self, *, registers: bool = False) -> None:
        """See `Host.start`; a client registers itself."""
        del registers
        self.up = self.arrived = True
        self.leaving = self.ready_to_leave = False
        self.leaves_with = []
        self.start_server()

    def start_server(self) -> None:
        """Start the client's process."""
        world = self._world
        process = Process(self.new_incarnation(self.name))
        self.server = process
        client = PullClient(
            world.connect(process),
            world.key,
            SimulatedFeed(world.log),
            name=self.name,
            incarnation=process.name,
            clock=self.clock,
            protect_s=PROTECT_S * world.unit_s,
            flush_s=self._flush_s,
            background=False,
            pause=world.schedule.sleep,
        )
        session = Session(process, client, {})
        self.sessions.append(session)
        delay_s = world.schedule.chance.uniform(0.1, TICK_S) * world.unit_s
        world.schedule.spawn(process, lambda: self._live(session), delay_s)

    def _live(self, session: Session) -> None:
        world, client = self._world, session.client
        settings = self.settings[self.name]
        while not self._tried(
            lambda: client.start(
                -1 if settings.source_count is None else settings.source_count,
                settings.node_id or 0,
            )
        ):
            if self.leaving:  # It never came in, so there is nothing to leave.
                self.up, session.process.dead = False, True
                return
            world.schedule.sleep(TICK_S * world.unit_s)
        beat_due = 0.0
        while not self.leaving:
            if self.clock() >= beat_due:
                beat_due = self.clock() + self.timing.beat_s * 0.45
                self._list_shards()
                self._tried(client.beat)
                world.watch.check_renewed(self.name, session.process.name)
            if not self._consume(session):
                world.schedule.sleep(min(3.0 * world.unit_s, self.timing.beat_s / 4))
        self._shut_down(session)

    def _tried(self, action: Callable[[], object]) -> bool:
        """Do something that the store or another member may refuse; whether it was done."""
        try:
            action()
        except AssignmentConflict:
            self.refused = True
            return False
        except LeaseholdError as error:
            self._world.watch.said(str(error))
            return False
        self.refused = False
        return True

    def _list_shards(self) -> None:
        """Somebody has to list the shards even where no Dagster host is left."""
        world = self._world
        version = world.listing_version
        if self.listed_version == version or self.server is None:
            return
        store = world.connect(self.server)
        with suppress(LeaseholdError):
            store.sync_shards(world.key, world.log.listing(), observer=str(self.name))
            self.listed_version = version

    def _consume(self, session: Session) -> bool:
        """Connect what is new, and process one batch; whether there was one."""
        world, client = self._world, session.client
        chance = world.schedule.chance
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
        if chance.random() < world.rates.slow_batch and not world.healed:
            seconds = chance.uniform(2.0, 60.0)
        world.schedule.sleep(seconds * world.unit_s)
        session.work(batch.shard, batch.start, batch.end)
        persist = chance.random() < PERSISTED_AT_ONCE
        self._tried(lambda: client.confirm(batch, persist=persist))
        return True

    def _shut_down(self, session: Session) -> None:
        world = self._world
        while not world.all_ready_to_leave(self):
            world.schedule.sleep(0.25 * world.unit_s)
        # Its only thread works no more, so that trust means nothing from here on.
        session.left = True
        # Where it fails, those who stay notice the silence.
        self._tried(session.client.shutdown)
        self.up = False
        session.process.dead = True
