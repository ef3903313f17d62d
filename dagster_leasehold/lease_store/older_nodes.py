"""Nodes of releases that cannot use a new schema: an upgrade waits until none of them beats.

What a node commits that stays connected to the tables of a newer release:

1. A node of a release without published tables is connected, and has a shard open.
2. The schema is upgraded. The node looked at its revision when it connected, and does not again.
3. It commits a batch, and moves its checkpoint; that the batch waits for a publisher it cannot say.
4. The batch is in the ledger, and in no table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, select

from dagster_leasehold.lease_store.errors import OlderNodesBeat
from dagster_leasehold.lease_store.identifiers import GroupKey
from dagster_leasehold.lease_store.release import OLDEST
from dagster_leasehold.lease_store.tables import consumer_group, worker_instance

LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class OlderNodes:
    """Members whose releases cannot use the schema of this one, at one moment.

    Attributes:
        counters: the counter and the incarnation of each, by its name and group.
        timeout_s: the longest T of their groups; 0 without any.
    """

    counters: dict[str, tuple[int, str]]
    timeout_s: float = 0.0

    def beating(self, before: OlderNodes) -> list[str]:
        """Return those that have beaten, or joined, since a moment before."""
        return sorted(name for name, at in self.counters.items() if before.counters.get(name) != at)


def older_nodes(connection: Connection) -> OlderNodes:
    """Return the older members in a database of any revision."""
    node = worker_instance.c
    chosen = (
        select(
            node.consume_group,
            node.logstream_sig,
            node.worker_instance,
            node.lease_id,
            node.incarnation,
            consumer_group.c.timeout_s,
        )
        .join(
            consumer_group,
            (consumer_group.c.consume_group == node.consume_group)
            & (consumer_group.c.logstream_sig == node.logstream_sig),
        )
        .where(node.incarnation != "")
    )
    columns = {each["name"] for each in inspect(connection).get_columns(worker_instance.name)}
    if node.schema_revision.name in columns:
        chosen = chosen.where(node.schema_revision < OLDEST)
    counters: dict[str, tuple[int, str]] = {}
    timeout_s = 0.0
    for group, stream, name, lease_id, incarnation, own_s in connection.execute(chosen):
        counters[f"{name} of {GroupKey.parse(group, stream)}"] = (lease_id, incarnation)
        timeout_s = max(timeout_s, own_s)
    return OlderNodes(counters, timeout_s)


def wait_until_silent(
    look: Callable[[], OlderNodes], *, clock: Callable[[], float], sleep: Callable[[float], None]
) -> OlderNodes:
    """Return the older members once none of them has beaten for T; those that leave are left out.

    Args:
        look: reads them.
        clock: monotonic seconds.
        sleep: waits, in seconds.

    Raises:
        OlderNodesBeat: some of them still do.
    """
    first = look()
    until = clock() + first.timeout_s
    now = first
    while now.counters and (left_s := until - clock()) > 0:
        sleep(min(LOOK_EVERY_S, left_s))
        now = look()
        refuse(now.beating(first))
    return now


def refuse(beating: list[str]) -> None:
    """Refuse to go on beside older nodes that beat.

    Raises:
        OlderNodesBeat: there are some.
    """
    if beating:
        raise OlderNodesBeat(
            f"Nodes of an older release, which cannot use the schema of this one, still beat: "
            f"{', '.join(beating)}. Stop all processes of that release, and run `leasehold db "
            "upgrade` again."
        )
