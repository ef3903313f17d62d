"""Requests to a run that follows its shards, which it handles within a second.

A request is a tag of the run. Another process writes it, and the run reads it between batches.
Requests only save work and waiting; leases keep a shard safe. The tags begin with
`.dagster/leasehold_`, so Dagster's pages hide them:

* `take`: the launcher found unread records in more shards of the run's node. The run opens them.
* `let_go/<shard>`: a user materializes the shard and waits for it. The run releases it.
* `finish`: other shards of the node wait for a run. This run ends once it has caught up.
* `stop`: the stream's definition has changed, or the run's time budget has ended. The run ends at
  its checkpoints, and another run replaces it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_leasehold.lease_store.errors import InvalidIdentifier
from dagster_leasehold.lease_store.identifiers import ShardId
from dagster_leasehold.lease_store.rules.failing_steps import sentence_of

TAKE_TAG = ".dagster/leasehold_take"
RELEASE_TAG = ".dagster/leasehold_let_go/"
FINISH_TAG = ".dagster/leasehold_finish"
STOP_TAG = ".dagster/leasehold_stop"
_OFFER = " (offer "
OFFER_ID_LENGTH = 8
_LOG = logging.getLogger(__name__)

Tags = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunRequests:
    """The requests that a run has not handled yet.

    Attributes:
        take: shards of its node to open.
        release: shards to release at their checkpoints.
        finish: end as soon as no batch is due.
        stop: end at the next checkpoint.
    """

    take: tuple[ShardId, ...] = ()
    release: frozenset[ShardId] = frozenset()
    finish: bool = False
    stop: bool = False


def offer(offer_id: str, shards: Sequence[ShardId]) -> dict[str, str]:
    """Return the tags that offer shards to a run; the id distinguishes offers of one shard."""
    return {TAKE_TAG: f"{', '.join(shards)}{_OFFER}{offer_id[:OFFER_ID_LENGTH]})"}


def offered(tags: Tags) -> tuple[ShardId, ...]:
    """Return the shards of a run's last offer; empty if the tag cannot be parsed."""
    shards, offer_mark, _ = tags.get(TAKE_TAG, "").partition(_OFFER)
    try:
        return tuple(map(ShardId, shards.split(", "))) if offer_mark else ()
    except InvalidIdentifier:
        return ()


def _shards_named(names: Iterable[str]) -> Iterator[ShardId]:
    """Yield the shards that tags name; skip invalid names, because any user can write tags."""
    for name in names:
        try:
            yield ShardId(name)
        except InvalidIdentifier as error:
            _LOG.warning("A request to this run is ignored: %s", error)


@dataclass(slots=True)
class RequestBox:
    """The requests to one run; each `take` and `release` is returned once."""

    tags: Callable[[], Tags]
    _answered: dict[str, str] = field(default_factory=dict[str, str])
    _unavailable: bool = False

    def __call__(self) -> RunRequests:
        """Return the new requests; empty if the tags cannot be read."""
        try:
            tags = self.tags()
        except Exception as error:
            # Any exception of the storage's driver. The run continues safely under its leases.
            if not self._unavailable:
                _LOG.warning("This run cannot receive requests: %s", sentence_of(error))
            self._unavailable = True
            return RunRequests()
        self._unavailable = False
        new_tags = {
            key: value
            for key, value in tags.items()
            if (key == TAKE_TAG or key.startswith(RELEASE_TAG)) and self._answered.get(key) != value
        }
        self._answered |= new_tags
        names = (key.removeprefix(RELEASE_TAG) for key in new_tags if key != TAKE_TAG)
        return RunRequests(
            take=offered(new_tags),
            release=frozenset(_shards_named(names)),
            finish=FINISH_TAG in tags,
            stop=STOP_TAG in tags,
        )
