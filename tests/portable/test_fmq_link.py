# heap: 1M
"""FMQ over a bad serial line whose other end is reset: what is published is stored once, in order."""

from fmq_hub import Hub
from test_link_pump import Dialer, Pair

from headwater.errors import E_AGAIN, E_CLOSED, E_OFFLINE, E_WINDOW, HeadwaterError
from headwater.fmq.client import Client
from headwater.link.link import Link
from headwater.link.pump import Pump, Stream
from headwater.link.transitions import UP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Server:
    """A hub at the end of a stream that is opened anew whenever it ends."""

    def __init__(self, pair: Pair):
        self.hub = Hub()
        self._pair = pair
        self._stream = pair.streams[1]
        self._stream.channel.open()

    def power_cut(self) -> None:
        """The line's other end is reset; the hub's session is on disk."""
        pair = self._pair
        self.hub.lost()
        pair.pumps[1] = Pump(pair.raws[1], Link(1000 + pair.now % 5000), pair.ticks_ms, 50)
        pair.streams[1] = self._stream = Stream(pair.pumps[1], pair.pumps[1].link.channels[0])
        self._stream.channel.open()

    def work(self) -> None:
        hub = self.hub
        n = self._stream.readinto(hub.rx.view, 256)
        if n == 0:
            hub.lost()
            self._stream.channel.open()
            return
        hub.feed(n or 0)
        while hub.out() and self._stream.channel.state == UP:
            k = self._stream.write(hub.out_buf, 0, hub.out())
            if not k:
                return
            hub.sent(k)


def published(pair: Pair, cuts: "tuple[int, ...]") -> "tuple[list[bytes], Hub]":
    """Publish 30 messages, connecting again whenever the connection ends."""
    server = Server(pair)
    dialer: Any = Dialer(pair, server)  # type: ignore[arg-type]
    client = Client(dialer, b"board", clean=False, keep_alive=0)
    handed: list[bytes] = []
    while len(handed) < 30 or client.session.outbox.count:
        assert pair.now < 600000
        if not client.connected:
            try:
                client.connect()
            except (HeadwaterError, OSError):
                continue
        if len(handed) < 30:
            payload = b"message %d " % len(handed) + b"\x00\x03\x04\r" * 20
            status = client.publish(b"a/b", payload, 1 + len(handed) % 2)
            if status > 0:
                handed.append(payload)
                if len(handed) in cuts:
                    server.power_cut()
            else:
                assert status in (E_WINDOW, E_OFFLINE, E_AGAIN, E_CLOSED), status
        client.wait(20)
    client.disconnect()
    return handed, server.hub


def test_over_a_good_line() -> None:
    handed, hub = published(Pair(), ())
    assert [message[1] for message in hub.stored] == handed and hub.duplicates == 0


def test_over_a_bad_line_and_resets_of_the_other_end() -> None:
    handed, hub = published(Pair(3, lose=40, flip=40, drop=40), (5, 6, 17, 29))
    assert [message[1] for message in hub.stored] == handed
