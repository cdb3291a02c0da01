"""Metrics in Prometheus' text format, and their HTTP server.

metrics = Metrics()
frames = metrics.counter("frames_total", "Frames received.", "type")
frames.add(1, "PUBLISH")
metrics.gauge("connections", "Open connections.").call(lambda: len(connections))
text = metrics.text()
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from headwater_host.timeouts import within

#: What every name begins with.
PREFIX = "headwater_hub_"
#: Series of one metric. Labels may come from clients.
_MOST_SERIES = 1000
#: Lines that are made in a turn of the event loop.
_LINES = 256
#: Seconds that a request may take, and bytes of its head.
_PATIENCE = 10.0
_LONGEST = 8192
#: Requests at the same time.
_MOST = 20
_STATUS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_TYPES = {200: "text/plain; version=0.0.4; charset=utf-8"}

#: The values of a metric by its labels, or its only value.
Labels = tuple[str, ...]
Values = float | Mapping[Labels, float] | Iterable[tuple[Labels, float]]


class Metric:
    """A name, and a value for each combination of its labels' values."""

    def __init__(self, kind: str, name: str, text: str, labels: tuple[str, ...]):
        self.name = PREFIX + name
        self.kind = kind
        self.labels = labels
        self.text = text
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        self._ask: Callable[[], Values] | None = None

    def add(self, amount: float = 1, *labels: str) -> None:
        """Increase the value."""
        if labels in self._values:
            self._values[labels] += amount
            return
        self.set(self._values.get(labels, 0) + amount, *labels)

    def set(self, value: float, *labels: str) -> None:
        """Replace the value. Beyond the limit of series, labels become "other"."""
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

    def call(self, ask: Callable[[], Values]) -> None:
        """Ask for the value, or for the values by labels, each time the metric is read."""
        self._ask = ask

    def lines(self) -> Iterator[str]:
        """Yield the metric as text, without line ends."""
        help_ = self.text.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {self.name} {help_}"
        yield f"# TYPE {self.name} {self.kind}"
        values: Values = dict(self._values) if self._ask is None else self._ask()
        if isinstance(values, int | float):
            values = [((), values)]
        for labels, value in values.items() if isinstance(values, Mapping) else values:
            yield f"{self.name}{self._labelled(labels)} {_number(value)}"

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
    """All metrics of a hub, in the order in which they were made."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics.values())

    def _make(self, kind: str, name: str, text: str, labels: tuple[str, ...]) -> Metric:
        if name in self._metrics:
            raise ValueError(f"the metric {name!r} exists already")
        self._metrics[name] = metric = Metric(kind, name, text, labels)
        return metric

    def counter(self, name: str, text: str, *labels: str) -> Metric:
        """Add a value that only grows; its name ends with ``_total``."""
        return self._make("counter", name, text, labels)

    def gauge(self, name: str, text: str, *labels: str) -> Metric:
        """Add a value that goes up and down."""
        return self._make("gauge", name, text, labels)

    def lines(self) -> Iterator[str]:
        """Yield all of them as text, without line ends."""
        return chain.from_iterable(metric.lines() for metric in self)

    def text(self) -> str:
        """Return all of them as text."""
        return "".join(line + "\n" for line in self.lines())


@dataclass
class Traffic:
    """Messages of clients by QoS, and messages to clients by type of frame."""

    received: Metric
    sent: Metric


# -- the HTTP server -----------------------------------------------------------------------------------------------


async def serve(
    host: str, port: int, metrics: Callable[[], Metrics], health: Callable[[], str]
) -> asyncio.AbstractServer:
    """Serve ``GET /metrics`` and ``GET /health``: ``health`` returns what is wrong, or "". Raises OSError."""
    busy = asyncio.Semaphore(_MOST)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with busy:
                await within(_PATIENCE, _answer(reader, writer, metrics, health))
        except (OSError, asyncio.TimeoutError):
            writer.transport.abort()
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_LONGEST)


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    metrics: Callable[[], Metrics],
    health: Callable[[], str],
) -> None:
    method = b""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.partition(b"\r\n")[0].split(b" ")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        status, body = 400, b"This is no HTTP request.\n"
    else:
        path = path.partition(b"?")[0]
        if path not in (b"/metrics", b"/health"):
            status, body = 404, b"Not found; the metrics are at /metrics, the health at /health.\n"
        elif method not in (b"GET", b"HEAD"):
            status, body = 405, b"Method not allowed; use GET.\n"
        elif path == b"/metrics":
            status, body = 200, await _page(metrics())
        else:
            problem = health()
            status, body = 503 if problem else 200, f"{problem or 'ok'}\n".encode()
    writer.write(_head(status, len(body)) + (b"" if method == b"HEAD" else body))
    await writer.drain()


async def _page(metrics: Metrics) -> bytes:
    """Return the text, made over several turns of the event loop: there may be a series for each topic."""
    lines: list[str] = []
    for line in metrics.lines():
        lines.append(line)
        if not len(lines) % _LINES:
            await asyncio.sleep(0)
    return ("\n".join(lines) + "\n").encode()


def _head(status: int, length: int) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_STATUS[status]}",
        f"Content-Type: {_TYPES.get(status, 'text/plain; charset=utf-8')}",
        f"Content-Length: {length}",
        "Connection: close",
    ]
    return "".join(line + "\r\n" for line in [*lines, ""]).encode()
