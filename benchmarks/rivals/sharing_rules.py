"""The rules by which other clients share shards among nodes, each for one node's turn.

Each rule is given who owns what (dead nodes own nothing), the nodes that are alive, and the node
whose turn it is; it answers which shards that node takes now. They see a fresh and complete
picture at every turn, and taking never fails: both are kinder than reality.

* `sync_plan`: the take-over thread of the first LogHub client. Every node wants the average,
  rounded up; what is missing is taken at once, free shards first, then from the richest.
* `kcl`: the lease taker of the Kinesis client. The same target; all that is free, or else one
  shard a turn from the richest, if that has more than the target, or if two or more are missing.
* `event_hubs`: the balanced load balancer of the Event Hubs processor. One shard a turn: a free
  one up to the average rounded up, else a stolen one up to the average rounded down.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

Owners = Mapping[str, str | None]
Rule = Callable[[Owners, Sequence[str], str, random.Random], list[str]]


def _held(owners: Owners, live: Sequence[str]) -> dict[str, list[str]]:
    held: dict[str, list[str]] = {node: [] for node in live}
    for shard, owner in owners.items():
        if owner is not None:
            held[owner].append(shard)
    return held


def _free(owners: Owners) -> list[str]:
    return [shard for shard, owner in owners.items() if owner is None]


def sync_plan(owners: Owners, live: Sequence[str], node: str, chance: random.Random) -> list[str]:
    held = _held(owners, live)
    wanted = math.ceil(len(owners) / len(live)) - len(held[node])
    if wanted <= 0:
        return []
    free = _free(owners)
    chance.shuffle(free)
    taken = free[:wanted]
    missing = wanted - len(taken)
    if not missing:
        return taken
    others = sorted((n for n in live if n != node), key=lambda n: -len(held[n]))
    richest: list[str] = []
    for place, other in enumerate(others):
        richest.append(other)
        left = (sum(len(held[n]) for n in richest) - missing) / len(richest)
        if place + 1 == len(others) or left > len(held[others[place + 1]]):
            break
    # Of the richest, each is left with the same number, give or take one.
    losses: Counter[str] = Counter()
    for _ in range(missing):
        poorer = max(richest, key=lambda n: len(held[n]) - losses[n], default=None)
        if poorer is None or len(held[poorer]) == losses[poorer]:
            break
        losses[poorer] += 1
    for other, count in losses.items():
        taken += chance.sample(held[other], count)
    return taken


def kcl(owners: Owners, live: Sequence[str], node: str, chance: random.Random) -> list[str]:
    held = _held(owners, live)
    # Workers without a lease are not known to the others.
    workers = {n for n in live if held[n]} | {node}
    target = 1 if len(workers) >= len(owners) else math.ceil(len(owners) / len(workers))
    needed = target - len(held[node])
    if needed <= 0:
        return []
    free = _free(owners)
    if free:
        chance.shuffle(free)
        return free[:needed]
    richest = max(workers, key=lambda n: (len(held[n]), n))
    over = len(held[richest]) - target
    if richest == node or over < 0 or (over == 0 and needed == 1):
        return []
    return [chance.choice(held[richest])]


def event_hubs(owners: Owners, live: Sequence[str], node: str, chance: random.Random) -> list[str]:
    held = _held(owners, live)
    active = {n for n in live if held[n]} | {node}
    low, high = len(owners) // len(active), math.ceil(len(owners) / len(active))
    if len(held[node]) >= high:
        return []
    free = _free(owners)
    if free:
        return [chance.choice(free)]
    if len(held[node]) >= low:
        return []
    richest = max(active, key=lambda n: (len(held[n]), n))
    return [chance.choice(held[richest])] if richest != node else []


RULES: dict[str, Rule] = {"sync-plan": sync_plan, "KCL": kcl, "Event Hubs": event_hubs}
