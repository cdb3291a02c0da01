"""Counters and gauges, as Prometheus reads them (its text format, version 0.0.4).

metrics = Metrics()
frames = metrics.counter("frames_total", "Frames received.", "type")
frames.add(1, "PUBLISH")
metrics.gauge("connections", "Open connections.").call(lambda: len(connections))
text = metrics.text()
"""

import math
from collections.abc import Callable, Mapping

#: What the text is, for the answer's header.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "headwater_hub_"
#: Of one metric: whatever clients do, what they are told apart by stays bounded.
_MOST_SERIES = 1000


class Metric:
    """One name, and a number for each combination of the labels' values."""

    def __init__(self, kind: str, name: str, text: str, labels: tuple[str, ...]):
        self.name = _PREFIX + name
        self.kind = kind
        self.labels = labels
        self._text = text
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        self._ask: Callable[[], float | Mapping[tuple[str, ...], float]] | None = None

    def add(self, amount: float = 1, *labels: str) -> None:
        """Count up."""
        if labels in self._values:
            self._values[labels] += amount
            return
        self.set(self._values.get(labels, 0) + amount, *labels)

    def set(self, value: float, *labels: str) -> None:
        """Be this. What would be one series too many is counted as "other"."""
        values = self._values
        if labels not in values:
            if len(labels) != len(self.labels):
                raise ValueError(f"{self.name} has the labels {self.labels}, not {labels}")
            if len(values) >= _MOST_SERIES:
                other = ("other",) * len(labels)
                if self.kind == "counter":
                    value += values.get(other, 0)
                labels = other
        values[labels] = value

    def call(self, ask: Callable[[], float | Mapping[tuple[str, ...], float]]) -> None:
        """Ask for the value, or the values by labels, when they are read."""
        self._ask = ask

    def lines(self) -> list[str]:
        """As text."""
        values: Mapping[tuple[str, ...], float] = self._values
        if self._ask is not None:
            asked = self._ask()
            values = asked if isinstance(asked, Mapping) else {(): asked}
        help_ = self._text.replace("\\", r"\\").replace("\n", r"\n")
        return [
            f"# HELP {self.name} {help_}",
            f"# TYPE {self.name} {self.kind}",
            *(f"{self.name}{self._labelled(labels)} {_number(value)}" for labels, value in values.items()),
        ]

    def _labelled(self, values: tuple[str, ...]) -> str:
        pairs = ",".join(
            f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True)
        )
        return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    return repr(value)


class Metrics:
    """All of them, in the order in which they were made."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def _make(self, kind: str, name: str, text: str, labels: tuple[str, ...]) -> Metric:
        if name in self._metrics:
            raise ValueError(f"there is a metric {name!r} already")
        self._metrics[name] = metric = Metric(kind, name, text, labels)
        return metric

    def counter(self, name: str, text: str, *labels: str) -> Metric:
        """A number that only grows; its name ends with ``_total``."""
        return self._make("counter", name, text, labels)

    def gauge(self, name: str, text: str, *labels: str) -> Metric:
        """A number that goes up and down."""
        return self._make("gauge", name, text, labels)

    def text(self) -> str:
        """What Prometheus reads."""
        return "".join(line + "\n" for metric in self._metrics.values() for line in metric.lines())
