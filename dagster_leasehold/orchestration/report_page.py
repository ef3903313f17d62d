"""An HTML page about a consumer group, in one file that loads nothing else.

All values are escaped, and a content security policy forbids loading anything.
Charts are inline SVG with one path per node, so that a page about 10,000 shards has only a few
megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html import escape

from dagster_leasehold.lease_store.errors import counted
from dagster_leasehold.lease_store.identifiers import NodeName
from dagster_leasehold.lease_store.journal_rows import Gap
from dagster_leasehold.lease_store.rules.assignment_plan import rank_key
from dagster_leasehold.lease_store.rules.progress import duration
from dagster_leasehold.orchestration.group_history import Holding, Move, Point, RunRow
from dagster_leasehold.orchestration.group_view import GroupView, total, tree
from dagster_leasehold.orchestration.presentation import cell, iso

ROWS_MAX = 500
"""The most moves, and the most runs, in a page; the newest are taken."""
OBSTACLES_MAX = 20
"""The most sentences about shards without progress."""
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1_000, 110, 10, 8, 24
LINE_HEIGHT = 180
ROW_HEIGHTS = ((60, 16.0), (400, 7.0), (2_000, 3.0))
"""The height of a row for up to this many shards, in pixels; for more shards it is 1 pixel."""
TICKS = 6
LABELS_MAX = 60


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a page.

    Attributes:
        holdings: the periods in which nodes held shards.
        gaps: the ranges of records that were removed before they were consumed.
        violations: the violations of `leasehold verify`; None if it did not run.
        notes: sentences about omitted parts.
    """

    at: datetime
    view: GroupView
    holdings: Sequence[Holding]
    moves: Sequence[Move]
    runs: Sequence[RunRow]
    points: Sequence[Point]
    gaps: Sequence[Gap]
    violations: Sequence[str] | None
    notes: Sequence[str] = field(default_factory=tuple)


def page(report: Report) -> str:
    """Return the page as one HTML document."""
    view, key = report.view, report.view.snapshot.group.key
    parts = [
        f"<h1>{escape(str(key))}</h1>",
        f'<p class="muted">Read at {iso(report.at)[:19]}Z.</p>',
        _verdicts(report),
        _numbers(report),
        *(f'<p class="muted">{escape(note)}</p>' for note in report.notes),
        _section("Nodes", _nodes(view)),
        _section("Ownership over time", ownership_picture(report.holdings)),
        _section(
            "Committed records per second",
            line_picture([(point.at, point.rate) for point in report.points], "records/s"),
        ),
        _section(
            "Age of the oldest record at its commit, in seconds",
            line_picture(
                [(each.at, each.delay_s) for each in report.points if each.delay_s is not None], "s"
            ),
        ),
        _section("Shards", _shards(view)),
        _section("Splits and merges", _tree(view)),
        _section("Moves between nodes", _moves(report.moves)),
        _section("Runs", _runs(report.runs)),
        _section("Gaps", _gaps(report.gaps)),
    ]
    return _DOCUMENT.replace("@TITLE@", escape(str(key))).replace("@BODY@", "\n".join(parts))


def ownership_picture(holdings: Sequence[Holding]) -> str:
    """Return an SVG of the holders over time, with a row per shard and a colour per node."""
    if not holdings:
        return "<p>No shard has had an owner yet.</p>"
    shards = sorted({each.shard for each in holdings}, key=rank_key)
    nodes = sorted({each.node for each in holdings}, key=rank_key)
    row = next((height for most, height in ROW_HEIGHTS if len(shards) <= most), 1.0)
    tops = {shard: TOP + place * row for place, shard in enumerate(shards)}
    span = _TimeAxis(min(each.begin for each in holdings), max(each.end for each in holdings))
    paths: dict[NodeName, list[str]] = {node: [] for node in nodes}
    for each in holdings:
        begin, end = span.x(each.begin), span.x(each.end)
        width = max(end - begin, 0.5)
        shape = f"M{begin:.1f} {tops[each.shard]:g}h{width:.1f}v{row * 0.85:.3g}h-{width:.1f}z"
        paths[each.node].append(shape)
    height = TOP + row * len(shards) + BOTTOM
    step = max(len(shards) // LABELS_MAX, 1)
    labels = [
        f'<text x="{LEFT - 6}" y="{tops[shard] + row:g}" class="right">{escape(shard)}</text>'
        for shard in shards[::step]
    ]
    colours = {node: _colour(place) for place, node in enumerate(nodes)}
    shapes = [
        f'<path d="{"".join(paths[node])}" fill="{colours[node]}"><title>{escape(node)}</title>'
        "</path>"
        for node in nodes
    ]
    legend = "".join(
        f'<span><i style="background:{colours[node]}"></i>{escape(node)}</span>' for node in nodes
    )
    picture = _svg(height, [*labels, *shapes, *span.ticks(height)], "Which node held which shard")
    return f'<div class="legend">{legend}</div><div class="scroll">{picture}</div>'


def line_picture(series: Sequence[tuple[datetime, float]], unit: str) -> str:
    """Return an SVG with one curve over time, on an axis that starts at 0."""
    if len(series) < 2:
        return "<p>There are too few commits for a chart.</p>"
    span = _TimeAxis(series[0][0], series[-1][0])
    highest = max(value for _, value in series) or 1.0
    digits = 0 if highest >= 10 else 2
    usable = LINE_HEIGHT - TOP - BOTTOM

    def y(value: float) -> float:
        return TOP + usable * (1 - value / highest)

    line = "L".join(f"{span.x(at):.1f} {y(value):.1f}" for at, value in series)
    levels = [
        f'<text x="{LEFT - 6}" y="{y(level) + 4:.1f}" class="right">'
        f"{level:,.{digits}f} {escape(unit)}</text>"
        f'<path d="M{LEFT} {y(level):.1f}H{WIDTH - RIGHT}" class="grid"/>'
        for level in (0.0, highest / 2, highest)
    ]
    curve = [f'<path d="M{line}" class="line"/>', *span.ticks(LINE_HEIGHT)]
    return _svg(LINE_HEIGHT, [*levels, *curve], unit)


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    begin: datetime
    end: datetime

    def x(self, at: datetime) -> float:
        whole = (self.end - self.begin) or timedelta(seconds=1)
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - self.begin) / whole)

    def ticks(self, height: float) -> list[str]:
        days = self.end - self.begin > timedelta(days=1)
        texts: list[str] = []
        for place in range(TICKS + 1):
            at = self.begin + (self.end - self.begin) * place / TICKS
            text = iso(at)
            label = f"{text[5:10]} {text[11:16]}" if days else text[11:19]
            anchor = "right" if place == TICKS else "middle" if place else "left"
            texts.append(
                f'<text x="{self.x(at):.1f}" y="{height - 6:g}" class="{anchor}">{label}</text>'
            )
        return texts


def _svg(height: float, parts: Iterable[str], name: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(name)}">'
        f"{''.join(parts)}</svg>"
    )


def _colour(place: int) -> str:
    # The golden angle between hues makes the colours of consecutive nodes distinct.
    return f"hsl({(210 + place * 137.508) % 360:.0f} 62% {(52, 40, 64)[place % 3]}%)"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _verdicts(report: Report) -> str:
    verdicts: list[tuple[bool, str]] = []
    death = report.view.death()
    verdicts.append((death is None, death or f"{counted(report.view.alive, 'node')} alive."))
    if report.violations is None:
        verdicts.append((False, "Journal and ledger were not verified."))
    elif report.violations:
        verdicts += [(False, f"Violation: {line}") for line in report.violations]
    else:
        verdicts.append((True, "Verified: each record was committed once, by its holder."))
    open_gaps = sum(not gap.acknowledged for gap in report.gaps)
    if open_gaps:
        verdicts.append((False, f"{counted(open_gaps, 'gap')} not acknowledged."))
    verdicts += [(False, line) for line in report.view.obstacles()[:OBSTACLES_MAX]]
    if report.view.lag_trouble:
        verdicts.append((False, report.view.lag_trouble))
    return "".join(
        f'<p class="{"good" if good else "bad"}">{escape(text)}</p>' for good, text in verdicts
    )


def _numbers(report: Report) -> str:
    shards = report.view.shards
    lag = total(row.lag for row in shards)
    records = sum(point.records for point in report.points)
    numbers = {
        "shards": f"{len(shards):,}",
        "unread records": "unknown" if lag is None else f"{lag:,.0f}",
        "records in these charts": f"{records:,}",
        "moves": f"{len(report.moves):,}",
        "gaps": f"{len(report.gaps):,}",
    }
    tiles = (f"<div><b>{value}</b>{name}</div>" for name, value in numbers.items())
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _table(columns: str, rows: Iterable[Sequence[object]], *, filtered: bool = False) -> str:
    """Return a sortable table; columns with `>` are right-aligned."""
    names = columns.split(", ")
    right = [name.startswith(">") for name in names]
    heads = "".join(
        f"<th{' class=n' if aligned else ''}>{escape(name.removeprefix('>'))}</th>"
        for aligned, name in zip(right, names, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if aligned else ''}>{escape(cell(value) if value != '' else '')}</td>"
            for aligned, value in zip(right, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    if not body:
        return "<p>None.</p>"
    field_ = '<input type="search" placeholder="Filter" aria-label="Filter">' if filtered else ""
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'{field_}<div class="scroll">{table}</div>'


def _nodes(view: GroupView) -> str:
    rows = (
        (
            row.node,
            row.liveness,
            None if row.last_beat_s is None else f"{duration(row.last_beat_s)} before",
            row.accepts_runs,
            row.shards,
            row.release,
        )
        for row in view.nodes
    )
    return _table("node, state, >last heartbeat, takes runs, >shards, release", rows)


def _shards(view: GroupView) -> str:
    rows = (
        (
            row.shard,
            row.state,
            row.consumer_owner,
            row.next_owner,
            row.check_point,
            row.lag,
            row.lag_seconds,
            row.epoch,
            row.run[:8],
            row.last_error,
        )
        for row in view.shards
    )
    columns = "shard, state, node, next, >checkpoint, >lag, >age in s, >epoch, run, last error"
    return _table(columns, rows, filtered=True)


def _tree(view: GroupView) -> str:
    related = {parent for row in view.shards for parent in row.parents}
    family = [row for row in view.shards if row.parents or row.shard in related]
    if not family:
        return "<p>No shard was split or merged.</p>"
    lines: list[str] = []
    for depth, row in tree(family):
        merged = f" ← {', '.join(row.parents)}" if len(row.parents) > 1 else ""
        branch = "  " * (depth - 1) + "└ " if depth else ""
        lines.append(escape(f"{branch}{row.shard}{merged}  {row.state}"))
    return f'<pre class="scroll">{chr(10).join(lines)}</pre>'


def _newest(rows: Sequence[object]) -> str:
    return f"<p>The newest {ROWS_MAX:,} of {len(rows):,}.</p>" if len(rows) > ROWS_MAX else ""


def _moves(moves: Sequence[Move]) -> str:
    rows = (
        (
            each.end,
            each.shard,
            each.source,
            each.target,
            "transfer" if each.planned else "holder died or left",
            each.seconds,
        )
        for each in list(moves)[: -ROWS_MAX - 1 : -1]
    )
    return _newest(moves) + _table("at, shard, from, to, why, >seconds", rows)


def _runs(runs: Sequence[RunRow]) -> str:
    rows = (
        (
            each.run[:8],
            each.node,
            each.begin,
            each.end,
            len(each.shards),
            each.batches,
            each.records,
        )
        for each in list(runs)[: -ROWS_MAX - 1 : -1]
    )
    return _newest(runs) + _table("run, node, from, to, >shards, >batches, >records", rows)


def _gaps(gaps: Sequence[Gap]) -> str:
    rows = (
        (gap.at, gap.shard, gap.start, gap.end, gap.reason, gap.acknowledged, gap.skipped)
        for gap in list(gaps)[:ROWS_MAX]
    )
    return _table("at, shard, >from, >to, why, acknowledged, skipped", rows)


_DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title><style>
:root { color-scheme: light dark; --line: #8884; --muted: #777; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 1.5rem auto;
 padding: 0 1rem; }
h1 { margin: 0; } h2 { font-size: 1.1rem; margin: 1.6rem 0 .5rem; }
.muted { color: var(--muted); margin: .2rem 0; }
.good, .bad { border-left: 4px solid #2a9d5c; padding: .3rem .7rem; margin: .4rem 0;
 background: #2a9d5c1f; }
.bad { border-color: #c8372d; background: #c8372d1f; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
.tiles div { border: 1px solid var(--line); border-radius: 6px; padding: .5rem .9rem;
 color: var(--muted); font-size: .85rem; }
.tiles b { display: block; font-size: 1.25rem; color: CanvasText; }
.scroll { max-height: 65vh; overflow: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; } th.n { text-align: right; }
th { position: sticky; top: 0; background: Canvas; cursor: pointer; }
th, td { padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line);
 overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
input { font: inherit; padding: .2rem .5rem; margin-bottom: .4rem; }
pre { font-size: .85rem; margin: 0; }
svg { width: 100%; display: block; }
svg text { font-size: 11px; fill: var(--muted); }
svg .right { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--line); } svg .line { stroke: #3572c6; fill: none; stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem .9rem; font-size: .85rem; margin: .3rem 0; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
</style></head><body>
@BODY@
<script>
for (const input of document.querySelectorAll("input")) {
  const rows = [...input.nextElementSibling.querySelectorAll("tbody tr")];
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(words);
  });
}
const number = text => Number(text.replaceAll(",", ""));
for (const head of document.querySelectorAll("th")) {
  head.addEventListener("click", () => {
    const at = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.dataset.down = head.dataset.down === "1" ? "0" : "1";
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [a.cells[at].textContent, b.cells[at].textContent];
      const order = isNaN(number(x)) || isNaN(number(y))
        ? x.localeCompare(y, undefined, { numeric: true }) : number(x) - number(y);
      return down === "1" ? order : -order;
    });
    body.append(...rows);
  });
}
</script>
</body></html>
"""
