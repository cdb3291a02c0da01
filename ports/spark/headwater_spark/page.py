"""Write a summary of tables as one HTML page that needs nothing else: charts are SVG, and there is no script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np

from headwater_spark import chart
from headwater_spark.overview import MAX_BOARDS, MAX_GAPS, MAX_METRICS, Board, Overview, Series
from headwater_spark.verdict import duration, explain, headline, is_silent, label, plural, printable, verdict

# Boards in the table of boards, and values of a board that are named without a chart.
_MAX_ROWS = 200
_MAX_NAMES = 30


def escape(value: Any) -> str:
    """Return a value as HTML."""
    return html.escape(printable(value))


def moment(ns: int, *, digits: int = 0) -> str:
    """Return a time in UTC, with this number of digits of its seconds' fraction (0 or 3)."""
    seconds, rest = divmod(ns, 10**9)
    try:
        text = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError):
        return f"{ns} ns"
    return f"{text}.{rest // 10**6:03d}" if digits else text


def render(found: Overview, title: str, sections: Sequence[tuple[str, Sequence[dict[str, Any]]]] = ()) -> str:
    """Return the page. `sections` are titles and rows of further tables."""
    findings = verdict(found)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='span'>{_span(found)}</p>",
        f"<section class='verdict {findings[0].level}'><h2>{headline(findings)}</h2><ul>",
        *(f"<li class='{one.level}'>{escape(one.text)}</li>" for one in findings),
        "</ul></section>",
        _throughput(found),
        _boards(found),
        _gaps(found),
        _values(found),
        _quarantine(found),
        _logical(found),
    ]
    parts += [f"<h2>{escape(heading)}</h2>{table(rows)}" for heading, rows in sections if rows]
    parts.append(_limits(found))
    return _PAGE.replace("@BODY@", "\n".join(part for part in parts if part))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table with their keys as the header."""
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = "\n".join("<tr>" + "".join(_cell(value) for value in row.values()) + "</tr>" for row in rows)
    return f"<div class='wide'><table>\n<tr>{head}</tr>\n{body}\n</table></div>"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def _cell(value: Any) -> str:
    if isinstance(value, Html):
        return f"<td>{value}</td>"
    kind = "" if isinstance(value, str) else " class='number'"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(value)
    return f"<td{kind}>{text}</td>"


def _span(found: Overview) -> str:
    if not found.boards:
        return "no messages"
    named = sum(board.name is not None for board in found.boards)
    return (
        f"{moment(found.first_ns)} to {moment(found.last_ns)} UTC · {plural(found.messages, 'message')} · "
        f"{plural(named, 'board')}"
    )


def _throughput(found: Overview) -> str:
    slots = found.slots
    if not found.messages:
        return ""
    seconds = slots.width_ns / 1e9
    top = float(found.rate.max()) / seconds
    mean = found.messages / max(seconds, (found.last_ns - found.first_ns) / 1e9)
    per, unit = next(((of, name) for of, name in ((1, "s"), (60, "min")) if mean * of >= 1), (3600, "h"))
    caption = (
        f"Messages per {duration(slots.width_ns)}: on average {_short(mean * per)}/{unit}, "
        f"at most {_short(top * per)}/{unit}"
    )
    return (
        f"<h2>Throughput</h2><figure class='full'>{chart.bars(found.rate, caption)}"
        f"<div class='axis'><span>{moment(slots.first_ns)}</span><span>{moment(found.last_ns)}</span></div>"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _boards(found: Overview) -> str:
    if not found.boards:
        return ""
    boards = sorted(
        found.boards,
        key=lambda board: (
            board.name is None,
            -board.lost,
            not is_silent(board, found.last_ns),
            -board.missing,
        ),
    )
    rows = [
        {
            "board": Html(f"{escape(label(board.name))}{_state(board, found)}"),
            "over time": Html(
                chart.bars(board.rate, f"messages of {escape(label(board.name))} over time", "spark")
            ),
            "messages": board.messages,
            "missing": None if board.name is None else board.missing,
            "duplicates": board.duplicates,
            "starts": None if board.name is None else board.starts,
            "median ms": board.p50_ms,
            "p99 ms": board.p99_ms,
            "last": moment(board.last_ns),
        }
        for board in boards[:_MAX_ROWS]
    ]
    more = ""
    if len(boards) > _MAX_ROWS:
        more = f"<p>{plural(len(boards) - _MAX_ROWS, 'more board')} without losses and silence.</p>"
        if any(
            board.missing or board.lost or is_silent(board, found.last_ns) for board in boards[_MAX_ROWS:]
        ):
            more = f"<p>{plural(len(boards) - _MAX_ROWS, 'more board')}; the tables list all.</p>"
    note = (
        "<p class='note'>Latency is receive time minus send time: of several hours, the middle median and the highest "
        "p99.</p>"
    )
    return f"<h2>Boards</h2>{table(rows)}{more}{note}"


def _state(board: Board, found: Overview) -> str:
    if board.lost:
        return " <b class='bad'>lost messages</b>"
    return " <b class='look'>silent</b>" if is_silent(board, found.last_ns) else ""


def _gaps(found: Overview) -> str:
    boards = {board.name: board for board in found.boards}
    parts = []
    for name, gaps in found.gaps.items():
        board = boards[name]
        rows = [
            {
                "start": gap.boot,
                "missing": gap.count,
                "seq": f"{gap.first_seq}" if gap.count == 1 else f"{gap.first_seq} to {gap.last_seq}",
                "after": moment(gap.before_ns, digits=3),
                "before": moment(gap.after_ns, digits=3),
                "likely cause": Html(f"<div class='prose'>{escape(explain(gap, board))}</div>"),
            }
            for gap in gaps
        ]
        largest = f"of the {MAX_GAPS} largest gaps: " if len(gaps) == MAX_GAPS else ""
        parts.append(
            f"<details{' open' if len(found.gaps) == 1 else ''}><summary>{escape(label(name))}: "
            f"{board.missing:,} missing; {largest}{_causes(board, found)}</summary>{table(rows)}</details>"
        )
    return "<h2>Losses and gaps</h2>" + "".join(parts) if parts else ""


def _causes(board: Board, found: Overview) -> str:
    """Count a board's gaps by cause."""
    gaps = found.gaps[board.name]
    offline = sum(explain(gap, board).startswith("offline") for gap in gaps)
    parts = [(offline, "while it was offline"), (len(gaps) - offline, "while it was online")]
    return ", ".join(f"{plural(count, 'gap')} {when}" for count, when in parts if count)


def _values(found: Overview) -> str:
    parts = []
    # A board may have constants only.
    shown = found.series.keys() | found.constants.keys()
    for name in [board.name for board in found.boards if board.name in shown]:
        figures = "".join(_figure(one) for one in found.series.get(name, ()))
        parts.append(f"<h3>{escape(label(name))}</h3><div class='grid'>{figures}</div>{_others(found, name)}")
    if not parts:
        return ""
    slots = found.value_slots
    note = (
        f"<p class='note'>From {moment(slots.first_ns)} to {moment(found.last_ns)} UTC; a line is the mean of "
        f"{duration(slots.width_ns)}, the band reaches from the lowest to the highest value.</p>"
    )
    return f"<h2>Values</h2>{note}{''.join(parts)}"


def _figure(series: Series) -> str:
    span = f"{_short(float(np.nanmin(series.low)))} to {_short(float(np.nanmax(series.high)))}"
    title = f"{escape(label(series.metric))} of {escape(label(series.board))}: {span}"
    return (
        f"<figure><figcaption>{escape(label(series.metric))} <b>{_short(series.last)}</b></figcaption>"
        f"{chart.line(series.mean, series.low, series.high, title)}"
        f"<div class='axis'><span>{span}</span></div></figure>"
    )


def _short(value: float) -> str:
    """Return a number with four significant digits, or a count with all."""
    size = abs(value)
    for unit, of in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if of <= size < 1e15:
            return f"{value / of:.4g} {unit}"
    if size >= 1e15 or (value and size < 1e-4):
        return f"{value:.3e}"
    if value == int(value) or size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _others(found: Overview, name: str | None) -> str:
    constants = _listed(
        [f"{label(metric)} = {_short(value)}" for metric, value in found.constants.get(name, ())]
    )
    omitted = _listed([label(metric) for metric in found.omitted.get(name, ())])
    text = f"<p class='note'>Constant: {constants}.</p>" if constants else ""
    return text + (
        f"<p class='note'>Not drawn, beyond {MAX_METRICS} values: {omitted}.</p>" if omitted else ""
    )


def _listed(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _MAX_NAMES:,} more" if len(texts) > _MAX_NAMES else ""
    return escape(", ".join(texts[:_MAX_NAMES]) + more)


def _quarantine(found: Overview) -> str:
    rows = [{"kind": kind, "reason": reason, "rows": count} for kind, reason, count in found.quarantine]
    return f"<h2>Quarantine</h2>{table(rows)}" if rows else ""


def _logical(found: Overview) -> str:
    if not sum(found.logical.values()):
        return ""
    rows = [{"topic": label(topic), "missing": missing} for topic, missing in found.incomplete]
    text = f"{found.logical['complete']:,} complete, {found.logical['incomplete']:,} incomplete"
    return f"<h2>Logical messages of IBM MQ</h2><p>{text}.</p>{table(rows) if rows else ''}"


def _limits(found: Overview) -> str:
    boards = f"at most {MAX_BOARDS} boards with losses, gaps or the most messages; <code>--board</code> selects others"
    text = f"Gaps and values: {boards}."
    if found.detail_ns > found.first_ns:
        text += (
            f" They and QoS are from {moment(found.detail_ns)} UTC on, everything else from the whole span."
        )
    return f"<footer><p>{text} Times are receive times in UTC.</p></footer>"


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>headwater: report</title>
<style>
:root { --text: #1c2329; --soft: #5b6670; --page: #fff; --card: #f5f7f8; --edge: #d9dfe3; --line: #0b6bcb;
  --band: #0b6bcb33; --ok: #1a7f37; --look: #9a6700; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --text: #e6eaed; --soft: #9aa6b0; --page: #14181b; --card: #1e2428;
  --edge: #384147; --line: #6cb2ff; --band: #6cb2ff44; --ok: #57c06f; --look: #e0b040; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem; color: var(--text);
  background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: .5rem 0 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
.span, .note, .axis, footer { color: var(--soft); font-size: .85rem; }
.span { margin: .2rem 0 1rem; }
.verdict { border: 1px solid var(--edge); border-left: .4rem solid var(--ok); background: var(--card);
  padding: .6rem 1rem; border-radius: .3rem; }
.verdict.look { border-left-color: var(--look); } .verdict.bad { border-left-color: var(--bad); }
.verdict h2 { margin: 0; } .verdict ul { margin: .3rem 0 0; padding-left: 1.2rem; }
li::marker { content: "\\2713\\00a0"; color: var(--ok); }
li.look::marker { content: "\\25b2\\00a0"; color: var(--look); }
li.bad::marker { content: "\\2717\\00a0"; color: var(--bad); }
b.look, b.bad { font-size: .75rem; } b.look { color: var(--look); } b.bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.prose { white-space: normal; min-width: 14rem; }
details { border: 1px solid var(--edge); border-radius: .3rem; padding: .4rem .8rem; margin: .4rem 0; }
summary { cursor: pointer; }
figure { margin: 0; } .full svg { width: 100%; height: 8rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(11rem, 46%), 1fr)); gap: .8rem 1rem; }
.grid svg { width: 100%; height: 3.6rem; background: var(--card); border-radius: .2rem; display: block; }
.grid b { white-space: nowrap; }
.grid figcaption { font-size: .85rem; display: flex; justify-content: space-between; gap: .5rem; }
svg.spark { width: 8rem; height: 1.4rem; }
.axis { display: flex; justify-content: space-between; }
.line { fill: none; stroke: var(--line); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.band { fill: var(--band); stroke: none; } .bar { fill: var(--line); }
</style>
@BODY@
</html>
"""
