"""Partitions and other troubles of a network, as incidents of the chaos campaign."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.network.hosts import CUT
from tests.network.switch import Link
from tests.network.world import DAEMON, DATABASE, NODES, SPARK, STORE, NetworkWorld

LASTS_S = (3.0, 18.0)
"""Shorter than the lease timeout, and longer than it plus the time to evict a node."""
SLOW, LOSSY = Link(delay_s=0.2), Link(loss=0.3)
NODE = "node"

Links = dict[tuple[str, str], Link]


def both_ways(one: str, other: str, link: Link) -> Links:
    return {(one, other): link, (other, one): link}


WAYS: dict[str, Callable[[str, str], Links]] = {
    "cut {} - {}": lambda one, other: both_ways(one, other, CUT),
    "one way {} > {}": lambda one, other: {(one, other): CUT},
    "one way {1} > {0}": lambda one, other: {(other, one): CUT},
    "slow {} - {}": lambda one, other: both_ways(one, other, SLOW),
    "loss {} - {}": lambda one, other: both_ways(one, other, LOSSY),
}
PAIRS = [
    *((NODE, peer) for peer in (DATABASE, STORE, SPARK, DAEMON)),
    (DAEMON, DATABASE),
    (SPARK, STORE),
]
NAMES = [(NODE, DATABASE), (NODE, STORE), (NODE, SPARK), (DAEMON, DATABASE), (DAEMON, NODE)]


@dataclass
class LinksChange:
    """Links between hosts are cut, slow or lossy for a while."""

    kind: str
    links: Links
    lasts_s: float
    _since: float = field(default=0.0, init=False)

    def strike(self, world: NetworkWorld) -> None:
        world.network.set_links(self.links)
        self._since = time.monotonic()

    def over(self, world: NetworkWorld) -> bool:
        if time.monotonic() - self._since < self.lasts_s:
            return False
        world.network.set_links(dict.fromkeys(self.links, Link()))
        return True


@dataclass
class NameLost:
    """A host does not find another one's name for a while."""

    kind: str
    host: str
    hidden: Sequence[str]
    silent: bool
    lasts_s: float
    _since: float = field(default=0.0, init=False)

    def strike(self, world: NetworkWorld) -> None:
        world.network.names(self.host, hidden=self.hidden, silent=self.silent)
        self._since = time.monotonic()

    def over(self, world: NetworkWorld) -> bool:
        if time.monotonic() - self._since < self.lasts_s:
            return False
        world.network.names(self.host)
        return True


Trouble = LinksChange | NameLost
Draw = Callable[[str, float], Trouble]
"""Makes the trouble of one kind, of a node where one takes part, that lasts so many seconds."""


def kinds() -> dict[str, Draw]:
    """Return all kinds, by their names."""
    return dict([*_of_links(), *_of_names()])


def _of_links() -> list[tuple[str, Draw]]:
    def draw(kind: str, way: Callable[[str, str], Links], one: str, other: str) -> Draw:
        return lambda node, lasts_s: LinksChange(
            kind, way(node if one == NODE else one, other), lasts_s
        )

    return [
        (kind, draw(kind, way, *pair))
        for pair in PAIRS
        for text, way in WAYS.items()
        for kind in [text.format(*pair)]
    ]


def _of_names() -> list[tuple[str, Draw]]:
    def draw(kind: str, host: str, hidden: str, *, silent: bool) -> Draw:
        return lambda node, lasts_s: NameLost(
            kind,
            node if host == NODE else host,
            [node if hidden == NODE else hidden],
            silent,
            lasts_s,
        )

    return [
        (kind, draw(kind, host, hidden, silent=silent))
        for host, hidden in NAMES
        for silent in (False, True)
        for kind in [f"{'no answer for' if silent else 'no name'} {hidden}, on {host}"]
    ]


def wave(dice: random.Random, kind: str, most: int) -> list[Trouble]:
    """Return partitions of one kind that happen at the same time, each for a different node."""
    draw = kinds()[kind]
    # On the daemon's host only one file has names: one trouble of it at a time.
    many = NODE in kind and not kind.endswith(f"on {DAEMON}")
    count = min(most, dice.randint(1, len(NODES))) if many else 1
    return [draw(node, dice.uniform(*LASTS_S)) for node in dice.sample(NODES, count)]
