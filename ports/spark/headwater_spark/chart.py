"""Draw the report's chart: messages over time, and latencies."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

from headwater_spark.stats import SLOTS, Slots, Stats, percentile

#: Number of boards with a line of their own.
_LINES = 9
_SHARES = [k / 100 for k in range(1, 100)] + [0.995, 0.999, 1.0]


def draw(stats: Stats, slots: Slots) -> bytes | None:
    """Return the chart as PNG, or None if matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullFormatter
    except ModuleNotFoundError:
        return None
    lines = _lines(stats)
    # Names are untrusted: do not interpret formulas in them.
    with mpl.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(11, 7), layout="constrained")
        rate, late = figure.subplots(2, 1)
        seconds = slots.width_ns / 1e9
        # A board has the same color in both charts.
        colours = {name: f"C{place}" for place, name in enumerate(lines)}
        for name, (timeline, _) in lines.items():
            counts = [timeline[k] / seconds for k in range(SLOTS)]
            rate.plot(
                [k * seconds for k in range(SLOTS)], counts, label=name, color=colours[name], linewidth=1.2
            )
        rate.set(xlabel="seconds since the first frame", ylabel="messages per second", ylim=(0, None))
        for name, (_, latency) in lines.items():
            if latency:
                values = [max(percentile(latency, share) or 0.0, 0.001) for share in _SHARES]
                late.plot(
                    values, [100 * share for share in _SHARES], label=name, color=colours[name], linewidth=1.2
                )
        late.set(xlabel="latency, ms", ylabel="messages within, %", xscale="log", ylim=(0, 101))
        # The default labels of a logarithmic axis are formulas.
        late.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
        late.xaxis.set_minor_formatter(NullFormatter())
        for axes in (rate, late):
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(loc="best", fontsize="small")
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=110)
    return png.getvalue()


def _lines(stats: Stats) -> dict[str, tuple[Counter[int], Counter[int]]]:
    """Return timeline and latencies by label: the boards with the most messages, then all others together."""
    boards: dict[str | None, list[Any]] = {}
    for (board, _), stat in stats.items():
        boards.setdefault(board, []).append(stat)
    by_size = sorted(boards, key=lambda board: -sum(stat.stored for stat in boards[board]))
    result: dict[str, tuple[Counter[int], Counter[int]]] = {}
    for place, board in enumerate(by_size):
        label = _label(board) if place < _LINES else f"{len(by_size) - _LINES} others"
        timeline, latency = result.setdefault(label, (Counter(), Counter()))
        for stat in boards[board]:
            timeline.update(stat.timeline)
            latency.update(stat.latency)
    return dict(sorted(result.items()))


def _label(board: str | None) -> str:
    if board is None:
        return "(no identity)"
    # matplotlib hides labels that begin with an underscore.
    name = "".join(c for c in board if c.isprintable())[:40]
    return f"\N{ZERO WIDTH SPACE}{name}" if name.startswith("_") else name or "(unprintable name)"
