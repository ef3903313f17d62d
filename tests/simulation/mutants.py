"""Mutants: each breaks one rule of the protocol in the way that a real system once did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from dagster_leasehold.lease_store.errors import LeaseholdError, OutcomeUnknown, StoreError
from dagster_leasehold.lease_store.identifiers import GroupKey, NodeName, ShardId
from dagster_leasehold.lease_store.ledger_rows import BatchCommit, BatchState
from dagster_leasehold.lease_store.member import Member
from dagster_leasehold.lease_store.memory_store import MemoryStore
from dagster_leasehold.lease_store.outcomes import Beaten, BeatRefused, Changed, Stale
from dagster_leasehold.lease_store.rebalancing import Rebalancer
from dagster_leasehold.lease_store.roles.operations import Rows
from dagster_leasehold.lease_store.rules.ledger import next_in_line
from dagster_leasehold.lease_store.rules.transitions import closed, holds
from dagster_leasehold.lease_store.shard_rows import Tenure
from tests.simulation.following import FOLLOWING, ReadsStrictlyByNumber
from tests.simulation.protocol import Parts, Run
from tests.simulation.protocol.consumption import consume
from tests.simulation.protocol.schedule import Crashed
from tests.simulation.protocol.seam import StoreSeam


class RenewsWithoutToken(MemoryStore):
    """A beat counts for a name, even from another incarnation."""

    def beat(self, key: GroupKey, node: NodeName, incarnation: str) -> Beaten | BeatRefused:
        row = self._groups[key].nodes.get(node)
        return super().beat(key, node, row.incarnation if row and row.member else incarnation)


class TrustsForTheWholeTimeout(Member):
    """The holder's timer is as long as the time after which the others bury it."""

    def extend_trust(self, sent_at: float) -> None:
        self.trusted_until = sent_at + self.timeout_s


class ReleasesWithoutToken(MemoryStore):
    """A run can close a shard in the tenure of another run."""

    def close_tenure(
        self,
        tenure: Tenure,
        *,
        reason: str,
        attempt_failed: bool = False,
        failed_at: datetime | None = None,
    ) -> None:
        def work(rows: Rows) -> None:
            row = rows.shards([tenure.shard])[tenure.shard]
            if row.consumer_run:
                rows.bump()
                rows.carry_out([closed(row, rows.members(), reason)], str(tenure.holder))

        self._writing("close_tenure", tenure.key, work)


class WaitsForeverForAReply(StoreSeam):
    """No call has a time-out: a reply that is lost is waited for until the end of time."""

    def _time_out(self) -> None:
        self._stage.schedule.sleep(1e9)


class _Unfenced(MemoryStore):
    """Commits under the current tenure of the shard."""

    def _now_held(self, commit: BatchCommit) -> BatchCommit:
        rows = self._groups[commit.tenure.key]
        row = rows.shards[commit.tenure.shard]
        if not row.state.held or row.consumer_owner is None:
            return commit
        batch = rows.batches.get((row.shard, commit.sequence))
        if batch is not None and batch.state is BatchState.COMMITTED:
            return commit
        tenure = replace(
            commit.tenure, holder=row.consumer_owner, epoch=row.consumer_epoch, run=row.consumer_run
        )
        self._intend(commit, tenure)
        return replace(commit, tenure=tenure)

    def _intend(self, commit: BatchCommit, tenure: Tenure) -> None:
        rows = self._groups[tenure.key]
        batch = rows.batches.get((tenure.shard, commit.sequence))
        if batch is not None:
            rows.batches[tenure.shard, commit.sequence] = replace(
                batch, epoch=tenure.epoch, run=tenure.run, start=commit.start, end=commit.end
            )


class CommitsWithoutToken(_Unfenced):
    """Each run at the right position writes the checkpoint, even if it is not the holder."""

    def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        return super().commit([self._now_held(commit) for commit in commits])


class WallClockRebalancer(Rebalancer):
    """Silence is measured by the wall clock."""

    def tick(self, remembered: str = ""):
        stage = self._store._stage
        monotonic = self._clock
        if not hasattr(self, "_stepped"):
            self._stepped = True
            self._clock = lambda: monotonic() + stage.wall_clock_offset_s
        return super().tick(remembered)


class AssumesEveryCommit:
    """The consumer's view of a store in which the number of changed rows is ignored."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> object:
        return getattr(self._store, verb)

    def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed]:
        self._store.commit(commits)
        return {commit.tenure.shard: Changed() for commit in commits}


class TrustsFromTheReply(Member):
    """The window is counted from when the reply came back."""

    def extend_trust(self, sent_at: float) -> None:
        super().extend_trust(self.clock())


class DoublesEvents(MemoryStore):
    """A commit that is repeated after a lost reply announces its batch again."""

    def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        before = set(self._groups[commits[0].tenure.key].outbox)
        outcomes = super().commit(commits)
        rows = self._groups[commits[0].tenure.key]
        if set(rows.outbox) == before:
            for event in list(rows.outbox.values()):
                for commit in commits:
                    batch = f"{commit.tenure.shard}.{commit.sequence}"
                    own = event.batch_id == batch and event.run == commit.tenure.run
                    if own and not event.delivered:
                        again = replace(event, sequence=self._all.next_sequence())
                        rows.outbox[again.sequence] = again
        return outcomes


class AdvancesByAmount(_Unfenced):
    """A commit adds to the checkpoint instead of naming where it starts."""

    def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        return super().commit([self._shifted(commit) for commit in commits])

    def _shifted(self, commit: BatchCommit) -> BatchCommit:
        rows = self._groups[commit.tenure.key]
        row = rows.shards.get(commit.tenure.shard)
        if row is None or not holds(row, commit.tenure):
            return commit
        if row.check_point is None or commit.finished:
            return commit
        amount = int(commit.end) - int(commit.start)
        start = int(row.check_point)
        shifted = replace(
            commit,
            start=str(start),
            end=str(start + amount),
            sequence=next_in_line(rows.batches.newest(row.shard))[0],
        )
        if commit.start != shifted.start:
            batch = rows.batches[row.shard, commit.sequence]
            rows.batches[row.shard, shifted.sequence] = replace(
                batch, sequence=shifted.sequence, state=BatchState.INTENT
            )
            self._intend(shifted, commit.tenure)
        return shifted


class TakesSilenceForYes(Member):
    """A beat without an answer is taken for one that counted."""

    def beat(self) -> bool:
        sent_at = self.clock()
        try:
            return super().beat()
        except StoreError:
            self.beaten_at = sent_at
            return True


class LastWriterWins(_Unfenced):
    """A commit sets the checkpoint to its end, and ignores the stored checkpoint."""

    def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        for commit in commits:
            rows = self._groups[commit.tenure.key]
            row = rows.shards[commit.tenure.shard]
            if row.state.held and row.check_point != commit.start:
                rows.shards[row.shard] = replace(row, check_point=commit.start)
        return super().commit([self._now_held(commit) for commit in commits])


class RefreshesItsToken:
    """The consumer's view of the store: before each write it fetches the newest token."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> object:
        return getattr(self._store, verb)

    def review(self, tenures: list[Tenure]) -> object:
        views = self._store.review(tenures)
        return {shard: replace(view, current=True) for shard, view in views.items()}

    def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed | Stale]:
        tenure = commits[0].tenure
        rows = {lease.shard: lease for lease in self._store.snapshot(tenure.key).shards}
        fresh: list[BatchCommit] = []
        for commit in commits:
            row = rows[commit.tenure.shard]
            if row.consumer_owner is None or not row.consumer_run:
                fresh.append(commit)
                continue
            token = replace(
                commit.tenure,
                holder=row.consumer_owner,
                epoch=row.consumer_epoch,
                run=row.consumer_run,
            )
            fresh.append(replace(commit, tenure=token))
        return self._store.commit(fresh)


class NeverTakesOver(Rebalancer):
    """A hand-over that its holder does not finish is waited for without end."""

    def _complete_due(self, snapshot: object, observations: object) -> bool:
        return False


class ForgetsPendingHandOvers(MemoryStore):
    """A holder that comes back under another run does not see that its shard was on its way."""

    def open_tenures(self, key, shards, node, run, *, replaces):
        leases = self._groups[key].shards
        rows = [leases[shard] for shard in shards if shard in leases]
        moving = {
            row.shard
            for row in rows
            if row.consumer_owner == node and row.state.value == "transfer"
        }
        others = {shard: ended for shard, ended in replaces.items() if shard not in moving}
        return super().open_tenures(key, shards, node, run, replaces=others)

    def free_orphans(self, key, *, observer):
        return Changed()


class ComparesWithoutCase(MemoryStore):
    """The database's collation takes `node-0` and `NODE-0` for one name."""

    def open_tenures(self, key, shards, node, run, *, replaces):
        outcomes = {}
        for shard in shards:
            row = self._groups[key].shards.get(shard)
            owner = row.consumer_owner if row else None
            same = owner is not None and owner.casefold() == node.casefold()
            taker = owner if same else node
            outcomes |= super().open_tenures(key, [shard], taker, run, replaces=replaces)
        return outcomes


class ChecksBeforeItWaits(StoreSeam):
    """The lease is checked when a commit is sent, and not again after it waited for a lock."""

    def _call(self, verb, args, options):
        if verb != "commit":
            return super()._call(verb, args, options)
        stage, commits = self._stage, args[0]
        rows = stage.store._groups[stage.key]
        checked = {
            commit.tenure.shard
            for commit in commits
            if holds(rows.shards[commit.tenure.shard], commit.tenure)
            and rows.shards[commit.tenure.shard].check_point in (None, commit.start)
        }
        stage.sleep(3.0)
        for commit in commits:
            row = rows.shards[commit.tenure.shard]
            if commit.tenure.shard in checked and row.state.held:
                tenure = commit.tenure
                rows.shards[row.shard] = replace(
                    row,
                    consumer_owner=tenure.holder,
                    consumer_epoch=tenure.epoch,
                    consumer_run=tenure.run,
                )
        return super()._call(verb, args, options)


class SeesNobodyAsking:
    """A waiting run's view of the store: its shards are as it left them when it began to wait."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> object:
        return getattr(self._store, verb)

    def review(self, tenures: list[Tenure]) -> object:
        views = self._store.review(tenures)
        return {
            shard: replace(view, transfer_to=None, paused=False) for shard, view in views.items()
        }


class TakesNoAnswerForNo:
    """A run treats a missing reply as a refusal: no shard was opened or released."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> object:
        return getattr(self._store, verb)

    def open_tenure(self, *args: object, **options: object) -> object:
        return self._answered("open_tenure", *args, **options)

    def open_tenures(self, *_: object, **__: object) -> dict[object, object]:
        return {}  # one by one, so that a run has others open

    def close_tenure(self, *args: object, **options: object) -> object:
        return self._answered("close_tenure", *args, **options)

    def _answered(self, verb: str, *args: object, **options: object) -> object:
        try:
            return getattr(self._store, verb)(*args, **options)
        except StoreError as error:
            raise LeaseholdError(str(error)) from None


def through(view: Callable[[object], object]) -> Callable[[Run], None]:
    """The consumer with another view of the store."""

    def consume_through(run: Run) -> None:
        consume(replace(run, store=view(run.store)))

    return consume_through


def _never_stops(run: Run) -> None:
    """A run that continues after its lease was lost, with the newest token."""

    class Deaf:
        trusted = True

    consume(replace(run, store=RefreshesItsToken(run.store), heartbeat=Deaf()))


def _repeats_blindly(run: Run) -> None:
    """A run that sends an unanswered commit again, as if nothing could have happened."""

    class Repeating:
        def __init__(self, store: object) -> None:
            self._store = store

        def __getattr__(self, verb: str) -> object:
            return getattr(self._store, verb)

        def commit(self, commits: list[BatchCommit]) -> dict[ShardId, Changed | Stale]:
            for _ in range(3):
                try:
                    return self._store.commit(commits)
                except OutcomeUnknown:
                    continue
            return self._store.commit(commits)

    consume(replace(run, store=Repeating(run.store)))


def _waits_in_one_piece(run: Run) -> None:
    """A run that sleeps until its next batch without checking its leases."""
    waits = run.waits
    if waits is not None:
        wait = waits.wait
        waits.wait = lambda seconds: wait(max(seconds, waits.pace.commit_interval_s))
    consume(run)


OWN = Parts(consume)


@dataclass(frozen=True)
class Mutant:
    """A broken part, and the parts that are otherwise sound."""

    name: str
    parts: Parts
    history: str
    sound: Parts = OWN


MUTANTS = [
    Mutant("renew without token", Parts(consume, store=RenewsWithoutToken), "River #199"),
    Mutant(
        "timer equals timeout", Parts(consume, heartbeat=TrustsForTheWholeTimeout), "River #217"
    ),
    Mutant("release without token", Parts(consume, store=ReleasesWithoutToken), "River #1213"),
    Mutant("no time-out on calls", Parts(consume, seam=WaitsForeverForAReply), "River #1251"),
    Mutant("checkpoint without token", Parts(consume, store=CommitsWithoutToken), "Azure"),
    Mutant("wall clock", Parts(consume, rebalancer=WallClockRebalancer), "apscheduler"),
    Mutant("row count ignored", Parts(through(AssumesEveryCommit)), "apscheduler"),
    Mutant("deadline from the reply", Parts(consume, heartbeat=TrustsFromTheReply), "P6"),
    Mutant("events doubled", Parts(_repeats_blindly, store=DoublesEvents), "apscheduler"),
    Mutant("blind retry", Parts(_repeats_blindly, store=AdvancesByAmount), "FoundationDB"),
    Mutant("silence means yes", Parts(consume, heartbeat=TakesSilenceForYes), "dagster-ray"),
    Mutant("last writer wins", Parts(consume, store=LastWriterWins), "Iceberg #17551"),
    Mutant("old holder kept", Parts(_never_stops), "Iceberg #17637"),
    Mutant(
        "hand-over stuck",
        Parts(consume, rebalancer=NeverTakesOver, store=ForgetsPendingHandOvers),
        "KCL #1718",
    ),
    Mutant("names without case", Parts(consume, store=ComparesWithoutCase), "collations"),
    Mutant("nobody heard while waiting", Parts(through(SeesNobodyAsking)), "Leasehold"),
    Mutant("no look while waiting", Parts(_waits_in_one_piece), "Leasehold"),
    Mutant("not checked after waiting", Parts(consume, seam=ChecksBeforeItWaits), "etcd 3.4.3"),
    Mutant(
        "strictly by number",
        replace(FOLLOWING, rebalancer=ReadsStrictlyByNumber),
        "outbox pollers",
        FOLLOWING,
    ),
]

__all__ = ["MUTANTS", "Crashed", "Mutant", "StoreError"]
