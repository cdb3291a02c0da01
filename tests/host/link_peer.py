"""The host's end of a serial line whose other end is ``device/link_end.py`` on MicroPython."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.link.link import UP, Link
from headwater.link.pump import Pump, Stream
from headwater_host.gateway.serial_port import new_session, ticks_ms
from tools.toolchain import ROOT

sys.path.insert(0, str(ROOT / "tests" / "portable"))

from line import content

if TYPE_CHECKING:
    from headwater.types import Transport

DEADLINE_S = 200.0


class HostEnd:
    """The host's end: sends ``size`` bytes in each stream, and checks every byte that comes."""

    def __init__(self, raw: Transport, size: int) -> None:
        self.size = size
        self.link = Link(new_session(), dead_ms=20000)
        self.pump = Pump(raw, self.link, ticks_ms)
        self.channel = self.link.channels[0]
        self.stream = Stream(self.pump, self.channel)
        self.ended: list[tuple[int, int]] = []
        self._buf = bytearray(1000)
        self.open()

    def open(self) -> None:
        self.channel.open()
        self.sent = self.got = 0
        self.over = False

    def turn(self) -> None:
        if self.over:
            self.pump.pump()
        else:
            peer = self.channel.peer
            n = self.stream.readinto(self._buf, len(self._buf))
            if n == 0:
                self.over = True
                self.ended.append((self.channel.why, self.got))
            elif n:
                assert self._buf[:n] == content(peer, self.got, n), (self.got, n)
                self.got += n
        if self.channel.state == UP and self.sent < self.size:
            n = min(self.size - self.sent, 700)
            self.sent += self.stream.write(content(self.channel.session, self.sent, n), 0, n) or 0

    def until(self, condition: Callable[[], bool]) -> None:
        """Go on until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            self.turn()
            time.sleep(0.001)
            assert time.monotonic() < deadline, (self.sent, self.got, self.channel.state, self.ended)

    def whole(self) -> bool:
        return self.got == self.sent == self.size and self.channel.waiting() == 0
