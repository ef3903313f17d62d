"""Pictures of a group's history: who owned which shard when, and how the output grew.

Drawn from the journal and the ledger. Their times are for people: they decide nothing.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagster_leasehold.lease_store.identifiers import NodeName, ShardId
from dagster_leasehold.lease_store.journal_rows import JournalEntry
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.states import ShardState

ROWS_MAX = 48
"""So many shards fit into a picture that can still be read."""
WIDTH_IN = 9.0
ROW_IN = 0.22


@dataclass(frozen=True, slots=True)
class Holding:
    """A stretch of time in which one node held a shard."""

    shard: ShardId
    node: NodeName
    begin: datetime
    end: datetime


def holdings_over_time(
    journal: Sequence[JournalEntry],
    until: datetime,
    *,
    held_before: Mapping[ShardId, NodeName] | None = None,
) -> list[Holding]:
    """Return the holdings in order of shards and time; those that go on end at `until`.

    Args:
        journal: the entries; the newest of them where there are very many.
        until: now.
        held_before: the holders of shards when the first of the entries was written.
    """
    since = journal[0].at if journal else until
    begun = {shard: (node, since) for shard, node in (held_before or {}).items()}
    holdings: list[Holding] = []
    for entry in journal:
        if entry.kind != "edge" or entry.shard is None or entry.to_state is ShardState.TRANSFER:
            continue  # In a transfer the holder stays; the edge after it tells how it ended.
        before = begun.pop(entry.shard, None)
        held = entry.to_state is ShardState.ALREADY_ALLOC
        if before is not None and held and before[0] == entry.to_owner:
            begun[entry.shard] = before
            continue
        if before is not None:
            holdings.append(Holding(entry.shard, *before, entry.at))
        if held and entry.to_owner is not None:
            begun[entry.shard] = (entry.to_owner, entry.at)
    holdings += [Holding(shard, *before, max(until, before[1])) for shard, before in begun.items()]
    return sorted(holdings, key=lambda held: (rank_key(held.shard), held.begin))


def holders_before(
    journal: Sequence[JournalEntry], now: Mapping[ShardId, NodeName]
) -> dict[ShardId, NodeName]:
    """Return the holders before some entries, by each shard's first edge, or else now."""
    holders = dict(now)
    for entry in reversed(journal):
        if entry.kind != "edge" or entry.shard is None:
            continue
        holders.pop(entry.shard, None)
        held = entry.from_state in (ShardState.ALREADY_ALLOC, ShardState.TRANSFER)
        if held and entry.from_owner is not None:
            holders[entry.shard] = entry.from_owner
    return holders


def growth(
    committed: Iterable[tuple[datetime, int]], *, before: int = 0, since: datetime | None = None
) -> list[tuple[datetime, int]]:
    """Return the number of records committed up to each commit, in order of time.

    Args:
        committed: times of commits, and the number of records of each.
        before: the number of records before all of these.
        since: commits of an earlier time are counted, but are no points.
    """
    total = before
    points: list[tuple[datetime, int]] = []
    for at, written in sorted(committed):
        total += written
        if since is None or at >= since:
            points.append((at, total))
    return points


def ownership_picture(holdings: Sequence[Holding]) -> bytes:
    """Return a PNG: one line per shard, one colour per node; only the first shards of very many."""
    shards = sorted({held.shard for held in holdings}, key=rank_key)[:ROWS_MAX]
    rows = {shard: row for row, shard in enumerate(shards)}
    nodes = sorted({held.node for held in holdings}, key=rank_key)
    axes = _axes(1.2 + ROW_IN * max(len(shards), 3))
    colours = _colours(nodes)
    for held in holdings:
        if held.shard in rows:
            width = held.end - held.begin
            row = (rows[held.shard] - 0.4, 0.8)
            axes.broken_barh([(held.begin, width)], row, facecolors=colours[held.node])
    axes.set_yticks(range(len(shards)), [str(shard) for shard in shards])
    axes.invert_yaxis()
    axes.set_ylabel("shard")
    axes.set_title("Who held which shard")
    _legend(axes, colours)
    return _png(axes)


def growth_picture(points: Sequence[tuple[datetime, int]]) -> bytes:
    """Return a PNG: committed records over time."""
    axes = _axes(2.6)
    axes.step([at for at, _ in points], [total for _, total in points], where="post")
    axes.set_ylabel("records")
    axes.set_ylim(bottom=0)
    axes.set_title("Committed records")
    return _png(axes)


def as_markdown(picture: bytes, title: str) -> str:
    """Return Markdown that carries a picture along."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(picture).decode()})"


def _axes(height_in: float) -> Any:
    # The object interface draws without a window system and without state shared by threads.
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot()
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _colours(nodes: Sequence[NodeName]) -> dict[NodeName, Any]:
    from matplotlib import colormaps

    palette = colormaps["tab10" if len(nodes) <= 10 else "tab20"]
    return {node: palette(place % palette.N) for place, node in enumerate(nodes)}


def _legend(axes: Any, colours: Mapping[NodeName, Any]) -> None:
    from matplotlib.patches import Patch

    if colours:
        patches = [Patch(color=colour, label=str(node)) for node, colour in colours.items()]
        axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _png(axes: Any) -> bytes:
    stream = io.BytesIO()
    axes.figure.savefig(stream, format="png", dpi=90)
    return stream.getvalue()
