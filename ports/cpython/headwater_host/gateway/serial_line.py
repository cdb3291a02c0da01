"""A serial line as a source: a port that may come and go, and the reliable link over it. What passes over that is the
board's protocol, of those who derive from it."""

import abc
import asyncio
import logging
import os

from headwater.link.link import CLOSING, Link
from headwater.link.pump import Pump
from headwater_host.gateway.config import SerialConfig
from headwater_host.gateway.recording import Landing
from headwater_host.gateway.serial_port import SerialPort, new_session, ticks_ms
from headwater_host.gateway.source import Source

# How often a port that is not there is tried.
_RETRY_S = 1.0
# How often the protocol looks at the clock.
_TICK_S = 0.5
_WINDOW = 32
#: Bytes that are read at once.
CHUNK = 4096


class Line(Source, abc.ABC):
    """The line at ``config.port``. ``channel`` carries a stream of bytes, which begins anew whenever it has ended."""

    def __init__(self, landing: Landing, config: SerialConfig):
        super().__init__(landing, f"serial:{config.port}")
        self._config = config
        #: Whether nothing more is taken, because the gateway ends.
        self.stopping = False
        self.loop = asyncio.get_running_loop()
        self._port: SerialPort | None = None
        self._broken: asyncio.Future[None] = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._link = Link(new_session())
        self.channel = self._link.channels[0]
        self._pump: Pump | None = None

    @abc.abstractmethod
    def move(self) -> None:
        """Move what can be moved between ``channel`` and the protocol."""

    @abc.abstractmethod
    def end_stream(self) -> None:
        """The stream is over, or about to be."""

    @abc.abstractmethod
    def unsent(self) -> bool:
        """Whether the board is still to get something."""

    # -- the port --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Raises ImportError when pyserial is missing."""
        while True:
            try:
                port = SerialPort(self._config.port, self._config.baud)
            except OSError as error:
                self.say("absent", f"cannot be opened: {text_of(error)}; trying again", logging.WARNING)
                await asyncio.sleep(_RETRY_S)
                continue
            self.say("open", "open, waiting for the board")
            try:
                await self._serve(port)
            except OSError as error:
                self.say("absent", f"the port is gone: {text_of(error)}", logging.WARNING)
            finally:
                self._release()
            await asyncio.sleep(_RETRY_S)

    async def _serve(self, port: SerialPort) -> None:
        """Until the port breaks: raises OSError."""
        self._port = port
        self._broken = self.loop.create_future()
        self._link = Link(new_session(), window=_WINDOW)
        self.channel = self._link.channels[0]
        self._pump = Pump(port, self._link, ticks_ms, CHUNK)
        self.channel.open()
        self.loop.add_reader(port.fileno(), self.work)
        self.work()
        await self._broken

    def _release(self) -> None:
        """Give the port back."""
        if self._timer is not None:
            self._timer.cancel()
        self.end_stream()
        port, self._port = self._port, None
        self._pump = None
        if port is not None:
            self.loop.remove_reader(port.fileno())
            self.loop.remove_writer(port.fileno())
            self._writing = False
            port.close()

    def work(self) -> None:
        """Move what can be moved: the port has bytes or room, time has come, or there is an answer."""
        pump = self._pump
        if pump is None or self._port is None or self._broken.done():
            return
        try:
            pump.pump()
            self.move()
            pump.pump()
            if pump.error is not None:
                raise pump.error
        except Exception as error:
            # Of the port: it is waited for. Anything else is a fault of ours, and ends the gateway in order.
            self._broken.set_exception(error)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(min(_TICK_S, self._link.due() / 1000), self.work)
        writing = self._link.out_end > self._link.out_at
        if writing != self._writing:
            self._writing = writing
            if writing:
                self.loop.add_writer(self._port.fileno(), self.work)
            else:
                self.loop.remove_writer(self._port.fileno())

    def drop(self, text: str, level: int = logging.INFO) -> None:
        """End the stream behind what was written, and wait for the next."""
        self.say("open", text, level)
        self.end_stream()
        self.channel.open()

    def stop_reading(self) -> None:
        """Take nothing more."""
        self.stopping = True

    async def finish(self, seconds: float) -> None:
        """Send the answers that are due and end the stream: returns when the board has all that, or time is up."""
        deadline = self.loop.time() + seconds
        channel = self.channel
        while self.unsent() and self.loop.time() < deadline:
            self.work()
            await asyncio.sleep(0.01)
        self.end_stream()
        channel.close()
        while channel.state == CLOSING and not self._broken.done() and self.loop.time() < deadline:
            self.work()
            await asyncio.sleep(0.01)

    def status(self) -> dict[str, object]:
        """As of a source, with what the link counted."""
        link = self._link
        counted = {"damaged": link.damaged, "frames_in": link.frames_in, "frames_out": link.frames_out}
        return super().status() | {"link": counted}


def text_of(error: OSError) -> str:
    """What the system says; pyserial puts a sentence of its own around that."""
    return os.strerror(error.errno) if error.errno else str(error)
