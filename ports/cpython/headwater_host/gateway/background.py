"""Run a gateway in a thread of a program."""

from __future__ import annotations

import asyncio
import threading
import time

from headwater_host.capture import CaptureLockedError
from headwater_host.exits import CommandError
from headwater_host.gateway.config import GatewayConfig
from headwater_host.gateway.service import Gateway

_LOOK_S = 0.02
_AGAIN_S = 0.2
# Longer than the gateway may take to flush and to answer.
_STOP_S = 20.0


class BackgroundGateway:
    """A gateway in a thread with an event loop of its own, which ends with the process.

    While another process writes to the log, it waits for up to ``lock_seconds``.
    """

    def __init__(self, config: GatewayConfig, lock_seconds: float):
        self._config = config
        self._lock_seconds = lock_seconds
        self._gateway: Gateway | None = None
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headwater gateway", daemon=True)

    def start(self) -> None:
        """Start the gateway; return when it has the log open. Raises CommandError if it cannot open the log."""
        self._thread.start()
        while not self.states:
            self.check()
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise CommandError if the gateway has ended, or if a server refuses its credentials or a subscription."""
        gateway = self._gateway
        if not self._thread.is_alive():
            if isinstance(self._error, CommandError):
                raise CommandError(str(self._error), self._error.code)
            raise CommandError(f"the gateway has ended: {self._error or 'see its log messages'}")
        if gateway is not None and gateway.refusals:
            raise CommandError("; ".join(gateway.refusals))

    @property
    def states(self) -> dict[str, str]:
        """The state of each source by its name, such as "consuming"; empty until the log is open."""
        return {} if self._gateway is None else self._gateway.states

    @property
    def records(self) -> tuple[int, int]:
        """The numbers of recorded frames and of those on disk."""
        return (0, 0) if self._gateway is None else self._gateway.records

    def stop(self) -> None:
        """Write and acknowledge what has arrived, and end."""
        self._stopping = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join(_STOP_S)

    def _end(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._loop.close()

    async def _main(self) -> None:
        deadline = time.monotonic() + self._lock_seconds
        while not self._stopping:
            self._gateway = Gateway(self._config)
            try:
                await self._gateway.run()
                return
            except CommandError as error:
                if not isinstance(error.__cause__, CaptureLockedError) or time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_AGAIN_S)
