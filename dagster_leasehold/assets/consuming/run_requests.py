"""The wishes of others that a run which follows its shards answers within a second.

They are tags of the run, written by the process that asks, and read by the run between two batches.
They save work and waiting; what keeps a shard safe is its lease. Their names begin with
`.dagster/leasehold_`, so that Dagster's pages leave them out:

* `take`: the launcher found work in more shards of the run's node, which join the run.
* `let_go/<shard>`: a user materializes the shard by hand, and waits for it.
* `finish`: other shards of the node wait for a run, so that this one ends at the head.
* `stop`: the stream's definition has changed, or the run's budget of time is over, so that it ends
  at its checkpoint and another run takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.errors import InvalidIdentifier
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of

TAKE_TAG = ".dagster/leasehold_take"
LET_GO_TAG = ".dagster/leasehold_let_go/"
FINISH_TAG = ".dagster/leasehold_finish"
STOP_TAG = ".dagster/leasehold_stop"
_OFFER = " (offer "
OFFER_ID_LENGTH = 8
_LOG = logging.getLogger(__name__)

Tags = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunRequests:
    """The wishes that a run has not answered yet.

    Attributes:
        take: shards of its node to open.
        let_go: shards to release at their checkpoints.
        finish: end as soon as nothing is due.
        stop: end at the next checkpoint.
    """

    take: tuple[ShardId, ...] = ()
    let_go: frozenset[ShardId] = frozenset()
    finish: bool = False
    stop: bool = False


def offer(offer_id: str, shards: Sequence[ShardId]) -> dict[str, str]:
    """Return the tags that offer shards to a run; the id tells two offers of one shard apart."""
    return {TAKE_TAG: f"{', '.join(shards)}{_OFFER}{offer_id[:OFFER_ID_LENGTH]})"}


def offered(tags: Tags) -> tuple[ShardId, ...]:
    """Return the shards of a run's last offer; none where the tag cannot be read."""
    shards, offer_mark, _ = tags.get(TAKE_TAG, "").partition(_OFFER)
    try:
        return tuple(map(ShardId, shards.split(", "))) if offer_mark else ()
    except InvalidIdentifier:
        return ()


def _shards_named(names: Iterable[str]) -> Iterator[ShardId]:
    """Yield the shards that tags name; anybody can write a tag that names none."""
    for name in names:
        try:
            yield ShardId(name)
        except InvalidIdentifier as error:
            _LOG.warning("A request to this run is ignored: %s", error)


@dataclass(slots=True)
class RequestBox:
    """The requests to one run, each handed out once.

    Attributes:
        tags: returns the run's tags as they are now.
    """

    tags: Callable[[], Tags]
    _answered: dict[str, str] = field(default_factory=dict[str, str])
    _silent: bool = False

    def __call__(self) -> RunRequests:
        """Return the new requests; none if the tags cannot be read; the next look reads them."""
        try:
            tags = self.tags()
        except Exception as error:
            # Any error of the storage's driver. The run continues: its leases stop it.
            if not self._silent:
                _LOG.warning("This run cannot receive requests: %s", sentence_of(error))
            self._silent = True
            return RunRequests()
        self._silent = False
        fresh = {
            key: value
            for key, value in tags.items()
            if (key == TAKE_TAG or key.startswith(LET_GO_TAG)) and self._answered.get(key) != value
        }
        self._answered |= fresh
        wishes = (key.removeprefix(LET_GO_TAG) for key in fresh if key != TAKE_TAG)
        return RunRequests(
            take=offered(fresh),
            let_go=frozenset(_shards_named(wishes)),
            finish=FINISH_TAG in tags,
            stop=STOP_TAG in tags,
        )
