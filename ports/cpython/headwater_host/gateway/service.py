"""Run a gateway: open the log, start the sources, write statistics, stop in good order."""

import asyncio
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from headwater_host.capture import CaptureLockedError, CaptureWriteError
from headwater_host.capture.asyncio_writer import LIMIT_BYTES, AsyncCapture
from headwater_host.daemon import serving
from headwater_host.exits import FAILED, OK, CommandError
from headwater_host.gateway.broker_source import BrokerSource
from headwater_host.gateway.config import FMQ, GatewayConfig
from headwater_host.gateway.fmq_board import FmqBoard
from headwater_host.gateway.hub_source import HubSource
from headwater_host.gateway.mqtt_board import MqttBoard
from headwater_host.gateway.recording import Recorder
from headwater_host.gateway.remote_hub_source import RemoteHubSource
from headwater_host.gateway.retention import INTERVAL, MQ_READER, Retention
from headwater_host.gateway.serial_line import SerialLine, text_of
from headwater_host.hub.errors import StorageError
from headwater_host.private import replace_file
from headwater_host.timeouts import within

if TYPE_CHECKING:
    from headwater_host.gateway.mq_service import MqService

# Seconds between writes of the statistics file; limits for flushing and for the last answers at the end.
_STATS_S = 1.0
_FLUSH_S = 10.0
_FINISH_S = 2.0

_logger = logging.getLogger("headwater.gateway")


class Gateway:
    """A gateway. ``run`` runs it until ``stop``."""

    def __init__(self, config: GatewayConfig, limit_bytes: int = LIMIT_BYTES):
        self._config = config
        self._limit = limit_bytes
        self._stop = asyncio.Event()
        self._failure: Exception | None = None
        self._started = time.time_ns()
        self._sources: list[SerialLine | BrokerSource | RemoteHubSource] = []
        self._hub: HubSource | None = None
        #: The hub while it starts.
        self._starting: HubSource | None = None
        self._mq: MqService | None = None
        self._recorder: Recorder | None = None
        self._retention = Retention(
            config.capture, config.retention, self._positions, group_readable=config.group_readable
        )
        # Why the last write of the statistics failed.
        self._stats_failure = ""
        self._line_at = 0.0
        self._line_records = 0

    def stop(self) -> None:
        """Stop. Accepted messages are written and acknowledged first."""
        self._stop.set()
        if self._starting is not None:
            self._starting.hub.give_up()

    def _fatal(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            _logger.critical("the capture log has failed: %s", error)
        self._stop.set()

    @property
    def states(self) -> dict[str, str]:
        """The state of each source by its name; empty until the log is open."""
        return {source.peer: source.state for source in self._all()}

    @property
    def records(self) -> tuple[int, int]:
        """The numbers of recorded frames and of those on disk."""
        recorder = self._recorder
        return (0, 0) if recorder is None else (recorder.records, recorder.durable)

    @property
    def refusals(self) -> list[str]:
        """Why servers refuse the gateway, with the name of each source."""
        return [f"{source.peer}: {source.refusal}" for source in self._all() if source.refusal]

    async def run(self) -> int:
        """Run until ``stop``; return the exit code. Raises CommandError if the log cannot be opened."""
        budget = self._config.budget()
        capture = AsyncCapture(
            self._config.capture,
            limit_bytes=self._limit,
            on_error=lambda error: self._failed(error),
            budget=budget,
            group_readable=self._config.group_readable,
            segment_bytes=self._config.segment_bytes,
            segment_age=self._config.segment_age,
        )
        try:
            await capture.__aenter__()
        except CaptureLockedError as error:
            raise CommandError(
                f"another gateway writes to {self._config.capture}: {error.strerror}"
            ) from error
        except OSError as error:
            text = error.strerror or str(error)
            raise CommandError(f"cannot open the capture log {self._config.capture}: {text}") from error
        for line in str(capture.recovery).splitlines():
            _logger.warning("capture log: %s", line)
        _logger.info("recording in %s, %s", self._config.capture, budget)
        try:
            recorder = self._recorder = Recorder(capture, self._limit, self._fatal)
        except (OSError, ValueError) as error:
            await capture.aclose()
            raise CommandError(f"cannot open the capture log {self._config.capture}: {error}") from error
        try:
            if self._config.mq is not None:
                from headwater_host.gateway.mq_service import MqService

                self._mq = MqService(
                    self._config.mq,
                    self._config.capture,
                    lambda: capture.durable_sequence,
                    group_readable=self._config.group_readable,
                )
            await self._start_hub(recorder)
        except CommandError:
            if self._mq is not None:
                await self._mq.stop()
            await capture.aclose()
            raise
        if not self._stop.is_set():
            self._make_sources(recorder)
        tasks = [asyncio.create_task(source.run(), name=source.peer) for source in self._sources]
        for task in tasks:
            task.add_done_callback(self._source_ended)
        periodic = [asyncio.create_task(self._tick(recorder)), asyncio.create_task(self._retain())]
        await self._stop.wait()
        _logger.info("stopping")
        for task in periodic:
            task.cancel()
        return await self._end(capture, recorder, tasks)

    async def _start_hub(self, recorder: Recorder) -> None:
        if self._config.hub is None:
            return
        hub = self._starting = HubSource(recorder, self._config.hub)
        try:
            await hub.start()
        except (StorageError, OSError) as error:
            if self._stop.is_set():
                return
            raise CommandError(f"the hub cannot start: {error}") from error
        finally:
            self._starting = None
        self._hub = hub

    def _make_sources(self, recorder: Recorder) -> None:
        if self._mq is not None:
            self._mq.start()
        for serial in self._config.serials:
            if serial.protocol == FMQ:
                assert self._hub is not None
                self._sources.append(FmqBoard(recorder, serial, self._hub))
            else:
                self._sources.append(MqttBoard(recorder, serial))
        self._sources += [BrokerSource(recorder, broker) for broker in self._config.brokers]
        self._sources += [RemoteHubSource(recorder, hub) for hub in self._config.hubs]

    def _all(self) -> "list[SerialLine | BrokerSource | RemoteHubSource | HubSource]":
        return [*self._sources, *([self._hub] if self._hub is not None else [])]

    def _failed(self, error: CaptureWriteError) -> None:
        if self._recorder is not None:
            self._recorder.failed(error)

    def _source_ended(self, task: "asyncio.Task[None]") -> None:
        """Stop the gateway: a source ends only by an error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or CommandError(f"{task.get_name()}: {error!r}")
            if not isinstance(error, CommandError):
                _logger.critical("%s failed", task.get_name(), exc_info=error)
            self._stop.set()

    async def _end(self, capture: AsyncCapture, recorder: Recorder, tasks: "list[asyncio.Task[None]]") -> int:
        for source in self._all():
            source.stop_reading()
        try:
            # Write and acknowledge all accepted messages while connections are open. If writing fails now, closing the
            # log tries once more.
            seconds = _FLUSH_S if recorder.error is None else _STATS_S
            await within(seconds, self._flush(capture, recorder))
        except (asyncio.TimeoutError, CaptureWriteError) as error:
            _logger.error("not everything could be written: %s", recorder.error or error)
        code = await self._stop_hub()
        await asyncio.gather(
            *(source.finish(_FINISH_S) for source in self._sources if isinstance(source, SerialLine))
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._mq is not None:
            await self._mq.stop()
        try:
            await capture.aclose()
        except CaptureWriteError as error:
            _logger.error("the capture log could not be finished: %s", error)
            code = FAILED
        if recorder.waiting:
            _logger.error(
                "%d frames were not written: senders retransmit those at QoS 1 and 2, the others are lost",
                recorder.waiting,
            )
            code = FAILED
        self._write_stats(recorder)
        if self._failure is not None:
            code = FAILED
        _logger.info("stopped; %s", self._totals(recorder))
        return code

    async def _stop_hub(self) -> int:
        """Stop the hub, if there is one; return the exit code."""
        if self._hub is not None:
            try:
                await self._hub.stop()
            except StorageError as error:
                _logger.error("%s", error)
                return FAILED
        return OK

    async def _flush(self, capture: AsyncCapture, recorder: Recorder) -> None:
        while recorder.waiting and self._failure is None:
            await capture.flush()
            # Let the loop append waiting frames and send acknowledgements.
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    # -- statistics ------------------------------------------------------------------------------------------------

    async def _tick(self, recorder: Recorder) -> None:
        begin = self._line_at = time.monotonic()
        while True:
            await asyncio.sleep(_STATS_S - (time.monotonic() - begin) % _STATS_S)
            recorder.check_recovered()
            if self._hub is not None:
                self._hub.check_storage()
            self._write_stats(recorder)
            now = time.monotonic()
            if now - self._line_at >= self._config.stats_seconds:
                rate = (recorder.records - self._line_records) / (now - self._line_at)
                self._line_at, self._line_records = now, recorder.records
                _logger.info("%s, %.1f a second", self._totals(recorder), rate)

    def _positions(self) -> dict[str, int]:
        """Return the first block that each reader within the gateway still needs."""
        return {} if self._mq is None else {MQ_READER: self._mq.position}

    async def _retain(self) -> None:
        while True:
            await asyncio.to_thread(self._retention.run)
            await asyncio.sleep(INTERVAL)

    def _totals(self, recorder: Recorder) -> str:
        names = [(source.peer, source.state) for source in self._all()]
        states = ", ".join(
            f"{name} {state}" for name, state in [*names, *(self._mq.states() if self._mq else ())]
        )
        return f"{recorder.records} records, {recorder.bytes} bytes, {recorder.waiting} not yet on disk; {states}"

    def status(self, recorder: Recorder) -> dict[str, Any]:
        """Return the contents of the statistics file."""
        return {
            "time_ns": time.time_ns(),
            "started_ns": self._started,
            "pid": os.getpid(),
            "records": recorder.records,
            "bytes": recorder.bytes,
            "durable": recorder.durable,
            "waiting": recorder.waiting,
            "syncs": recorder.capture.syncs,
            "error": str(recorder.error) if recorder.error else None,
            "sources": [source.status() for source in self._all()],
            "mq": self._mq.status() if self._mq is not None else None,
            "retention": self._retention.status(),
        }

    def _write_stats(self, recorder: Recorder) -> None:
        path = self._config.stats
        if path is None:
            return
        failure = ""
        try:
            text = json.dumps(self.status(recorder)) + "\n"
            replace_file(path, text.encode(), group_readable=self._config.group_readable)
        except OSError as error:
            failure = text_of(error)
        if failure and failure != self._stats_failure:
            _logger.warning("cannot write the statistics to %s: %s; trying again", path, failure)
        elif self._stats_failure and not failure:
            _logger.info("statistics are written to %s again", path)
        self._stats_failure = failure


async def serve(config: GatewayConfig) -> int:
    """Run a gateway until SIGTERM or SIGINT; return the exit code. A second signal ends the process at once."""
    gateway = Gateway(config)
    with serving(gateway.stop):
        return await gateway.run()
