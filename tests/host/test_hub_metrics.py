"""Metrics as Prometheus reads them."""

import re

import pytest

from headwater_host.hub.metrics import _MOST_SERIES, Metrics
from tests.rows import each_row

#: A line of the text format: a comment, or a sample.
LINE = re.compile(
    r'# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{[a-z_]+="(\\[\\"n]|[^\\"\n])*"(,[a-z_]+="(\\[\\"n]|[^\\"\n])*")*\})? '
    r"([-+]?[0-9.e+-]+|NaN|[+-]Inf)"
)


def test_the_text() -> None:
    metrics = Metrics()
    frames = metrics.counter("frames_total", "Frames received.", "type", "side")
    connections = metrics.gauge("connections", "Open connections,\nnow: \\o/")
    size = metrics.gauge("storage_bytes", "Size.")
    topics = metrics.gauge("messages", "By topic.", "topic")
    frames.add(1, "PUBLISH", "in")
    frames.add(2, "PUBLISH", "in")
    frames.add(1, 'a"b\\c\nd', "out")
    connections.add()
    connections.add(-3)
    size.call(lambda: 1.5)
    topics.call(lambda: [(("t",), 5)])
    text = metrics.text()
    assert text == (
        "# HELP headwater_hub_frames_total Frames received.\n"
        "# TYPE headwater_hub_frames_total counter\n"
        'headwater_hub_frames_total{type="PUBLISH",side="in"} 3\n'
        'headwater_hub_frames_total{type="a\\"b\\\\c\\nd",side="out"} 1\n'
        "# HELP headwater_hub_connections Open connections,\\nnow: \\\\o/\n"
        "# TYPE headwater_hub_connections gauge\n"
        "headwater_hub_connections -2\n"
        "# HELP headwater_hub_storage_bytes Size.\n"
        "# TYPE headwater_hub_storage_bytes gauge\n"
        "headwater_hub_storage_bytes 1.5\n"
        "# HELP headwater_hub_messages By topic.\n"
        "# TYPE headwater_hub_messages gauge\n"
        'headwater_hub_messages{topic="t"} 5\n'
    )
    assert all(LINE.fullmatch(line) for line in text.splitlines())


@each_row(
    "value, text", [(float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (1e300, "1e+300")]
)
def test_numbers(value: float, text: str) -> None:
    metrics = Metrics()
    metrics.gauge("x", "X.").set(value)
    assert metrics.text().splitlines()[-1] == f"headwater_hub_x {text}"


def test_series_are_bounded() -> None:
    metrics = Metrics()
    counter = metrics.counter("x_total", "X.", "client")
    for _ in range(2):
        for n in range(_MOST_SERIES + 5):
            counter.add(1, str(n))
    lines = metrics.text().splitlines()[2:]
    assert len(lines) == _MOST_SERIES + 1
    assert lines[-1] == 'headwater_hub_x_total{client="other"} 10'
    assert lines[0] == 'headwater_hub_x_total{client="0"} 2'


def test_what_is_not_allowed() -> None:
    metrics = Metrics()
    metrics.counter("x_total", "X.")
    with pytest.raises(ValueError, match="already"):
        metrics.gauge("x_total", "X.")
    with pytest.raises(ValueError, match="labels"):
        metrics.gauge("y", "Y.", "a").add(1)
