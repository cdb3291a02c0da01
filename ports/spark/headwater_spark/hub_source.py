"""The format `headwater.hub`: read the topics of an FMQ hub as a stream, and publish to it.

The stream's reader, which lives in a Python process of the driver, runs a gateway that consumes the topics in a group
and records them in a capture log; everything else is the stream of that log. The hub gets an acknowledgement when a
message is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from headwater_host.capture.readers import list_readers, save_reader
from headwater_host.capture.retention import Limits
from headwater_host.exits import CommandError
from headwater_host.gateway.config import FmqConfig, GatewayConfig, check
from headwater_host.private import make_directory
from headwater_spark.options import OPTIONS, OptionError, ReadOptions, read_of
from headwater_spark.plan import Log
from headwater_spark.positions import parse_positions
from headwater_spark.servers import CONSUMER, server_of, server_options
from headwater_spark.sink import HUB_SINK, StreamSink, TableSink, sink_of
from headwater_spark.source import LogStream, view_columns
from headwater_spark.tables import VIEWS

if TYPE_CHECKING:
    from headwater_host.gateway.background import BackgroundGateway

_LOG = tuple(option for option in OPTIONS if option.name not in {"path", "paths"})
_REQUIRED = ("capture", "topics", "group")
#: The name of the query among the readers of its log.
READER = "headwater.hub"
# With Trigger.AvailableNow, the hub has delivered what it had if nothing arrives for so long.
_QUIET_S = 1.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class HubOptions:
    """The validated options of a stream."""

    log: ReadOptions
    gateway: GatewayConfig
    timeout: float
    lock_timeout: float


def parse_hub(given: Mapping[str, str]) -> HubOptions:
    """Parse and validate the options of a stream. Raises OptionError."""
    values = server_options("headwater.hub", given, (*CONSUMER, *_LOG))
    for name in _REQUIRED:
        if values[name] is None:
            raise OptionError(f"option {name} is missing: {_meaning(name)}")
    server = server_of(values)
    hub = FmqConfig(
        server.host,
        server.port,
        values["topics"],
        values["group"],
        values["clientId"] or "",
        server.username,
        server.password,
        values["keepalive"],
        values["timeout"],
        values["window"],
        server.tls,
    )
    limits = Limits(values["maxAge"], values["maxBytes"])
    capture: Path = values["capture"]
    log = read_of(values, (Log(str(capture)),))
    gateway = check(GatewayConfig(capture, hubs=(hub,), retention=limits))
    return HubOptions(log, gateway, values["timeout"], values["lockTimeout"])


def _meaning(name: str) -> str:
    return next(option.what for option in CONSUMER if option.name == name)


class HubSource(DataSource):
    """The format `headwater.hub`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "headwater.hub"

    def schema(self) -> str:
        """Return the schema with all columns of the log's view."""
        return VIEWS[parse_hub(self.options).log.view].ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse: a hub has no range to read."""
        raise OptionError(
            'a hub cannot read a range of messages again: use spark.readStream.format("headwater.hub"), or read its '
            'capture log with spark.read.format("headwater")'
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream of the columns in `schema`."""
        options = parse_hub(self.options)
        return HubStream(options, view_columns(VIEWS[options.log.view], schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer that publishes the rows of a DataFrame."""
        return TableSink(sink_of(HUB_SINK, self.options, schema, overwrite, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return a writer that publishes the rows of each micro-batch."""
        return StreamSink(sink_of(HUB_SINK, self.options, schema, overwrite, is_stream=True))


class HubStream(LogStream):
    """The stream of a log that a gateway in this process writes.

    Spark keeps one of these for a query, which starts the gateway when it is first asked for an offset or a partition.
    Others, in tasks, only read the log.
    """

    def __init__(self, options: HubOptions, columns: list[str]):
        super().__init__(options.log, columns)
        self._hub = options
        self._gateway: BackgroundGateway | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query begins in the log."""
        self._consume()
        return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. Raises OptionError if the hub refuses the consumer."""
        self._consume()
        return super().latestOffset(start, limit)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the present end of the log."""
        self._consume()
        return super().reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        """Return the partitions of a micro-batch."""
        self._consume()
        return super().partitions(start, end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at the end of the log once the hub has delivered nothing for a second.

        Raises OptionError if the hub cannot be reached.
        """
        gateway = self._consume()
        deadline = time.monotonic() + self._hub.timeout
        while "consuming" not in gateway.states.values():
            if time.monotonic() >= deadline:
                peer, state = next(iter(gateway.states.items()))
                raise OptionError(f"{peer}: not consuming within {self._hub.timeout:g} s: {state}")
            time.sleep(_LOOK_S)
            gateway.check()
        seen, since = gateway.records, time.monotonic()
        while time.monotonic() - since < _QUIET_S or seen[0] != seen[1]:
            time.sleep(_LOOK_S)
            gateway.check()
            if gateway.records != seen:
                seen, since = gateway.records, time.monotonic()
        super().prepareForTriggerAvailableNow()

    def commit(self, end: dict[str, Any]) -> None:
        """Let retention know that Spark has completed the micro-batches up to `end`."""
        for position in parse_positions(end).values():
            save_reader(self._hub.gateway.capture, READER, position.sequence)

    def stop(self) -> None:
        """End the gateway, which acknowledges what it has written."""
        if self._gateway is not None:
            self._gateway.stop()

    def _consume(self) -> BackgroundGateway:
        """Return the gateway, which is started if necessary. Raises OptionError if it cannot go on."""
        # The hub and the gateway take half a second to import, and Spark imports each format in each session.
        from headwater_host.gateway.background import BackgroundGateway

        try:
            if self._gateway is None:
                _keep_all(self._hub.gateway.capture)
                gateway = BackgroundGateway(self._hub.gateway, self._hub.lock_timeout)
                gateway.start()
                self._gateway = gateway
            self._gateway.check()
        except CommandError as error:
            raise OptionError(str(error)) from None
        return self._gateway


def _keep_all(capture: Path) -> None:
    """Let retention keep the whole log until the query has told what it has read. Raises CommandError."""
    try:
        make_directory(capture)
        if READER not in list_readers(capture):
            save_reader(capture, READER, 0)
    except OSError as error:
        raise CommandError(f"cannot open the capture log {capture}: {error.strerror}") from error
