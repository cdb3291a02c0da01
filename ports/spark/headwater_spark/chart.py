"""Draw charts as SVG elements for a page.

A chart stretches to the width of its place. Its colors and fonts are those of the page's classes `line`, `band`, `bar`
and `last`; labels are the page's text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: Size of a chart's coordinates.
WIDTH, HEIGHT = 300, 100
# A line is interrupted where this number of its usual steps has no value.
_BREAK = 5

Values = npt.NDArray[np.float64]


def _svg(body: str, title: str, kind: str) -> str:
    # Titles have been escaped.
    return (
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}">{body}</svg>'
    )


def line(mean: Values, low: Values, high: Values, title: str) -> str:
    """Draw one value over time: a line of means, and a band from the lowest to the highest value.

    The arrays have one number per slot of time, NaN for slots without values. An escaped `title` describes the chart.
    """
    there = np.flatnonzero(~np.isnan(mean))
    if not len(there):
        return _svg("", title, "values")
    bottom, top = float(np.nanmin(low)), float(np.nanmax(high))
    # The range of two doubles may exceed a double's: halves do not.
    span = (top / 2 - bottom / 2) or 1.0
    x: Values = there * np.float64(WIDTH / max(len(mean) - 1, 1))

    def y(values: Values) -> Values:
        # With a margin, so that lines at the edges are visible.
        result: Values = HEIGHT * (1 - (0.06 + 0.88 * (values[there] / 2 - bottom / 2) / span))
        return result

    middle, lowest, highest = y(mean), y(low), y(high)
    body = ""
    for piece in _pieces(there):
        along = x[piece]
        if len(along) == 1:
            # A short line stands for a single value.
            along = along + np.array([-1.5, 1.5])
            piece = np.repeat(piece, 2)
        body += f'<polygon class="band" points="{_band(along, lowest[piece], highest[piece])}"/>'
        body += f'<polyline class="line" points="{_points(along, middle[piece])}"/>'
    return _svg(body, title, "values")


def bars(counts: Values, title: str, kind: str = "bars") -> str:
    """Draw counts per slot of time as bars. An escaped `title` describes the chart."""
    top = float(counts.max()) if len(counts) else 0.0
    if not top:
        return _svg("", title, kind)
    width = WIDTH / len(counts)
    path = "".join(
        f"M{k * width:.4g} {HEIGHT}v-{max(HEIGHT * count / top, 1.5):.4g}h{width * 0.85:.3g}V{HEIGHT}z"
        for k, count in enumerate(counts.tolist())
        if count
    )
    return _svg(f'<path class="bar" d="{path}"/>', title, kind)


def _pieces(there: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Divide the slots that have a value where much more slots than usual have none."""
    steps = np.diff(there)
    breaks = np.flatnonzero(steps > _BREAK * np.median(steps)) + 1 if len(steps) else steps
    return np.split(np.arange(len(there)), breaks)


def _points(x: Values, y: Values) -> str:
    return " ".join(f"{a:.4g},{b:.4g}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _band(x: Values, low: Values, high: Values) -> str:
    return f"{_points(x, low)} {_points(x[::-1], high[::-1])}"
