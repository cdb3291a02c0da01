"""A program that polls and has enough for now: bytes wait in its socket, and it waits without using the processor."""

import settings

from headwater.mqtt.client import Client
from headwater_board.tcp import Tcp

TURNS = 1000 // 20


class Counted(Tcp):
    """Counts how often it is asked to wait."""

    turns = 0

    def wait(self, ms: int) -> None:
        self.turns += 1
        super().wait(ms)

    def rest(self, ms: int) -> None:
        self.turns += 1
        self.sleep_ms(ms)


def main() -> None:
    dialer = Counted("127.0.0.1", settings.PORT)
    dialer.sleep_ms, dialer.sleep = dialer.sleep, dialer.rest
    client = Client(dialer, b"board", keep_alive=4)
    got = []
    client.on_message = lambda message: got.append(message.payload_bytes())
    client.connect()
    client.subscribe(b"t", 1)
    client.reading = False
    # The answer comes nevertheless.
    while client.session.awaits():
        assert client.wait(20) == 0
    other = Client(Tcp("127.0.0.1", settings.PORT), b"other")
    other.connect()
    for n in range(5):
        other.publish(b"t", b"%d" % n, 1)
    other.flush(10000)
    # The bytes are there once the socket is readable.
    dialer.wait(10000)
    dialer.turns = 0
    assert client.wait(1000) == 0
    print("turns", dialer.turns <= TURNS + 1, got)
    # And with them, when an acknowledgement is due behind them, the messages.
    assert client.publish(b"elsewhere", b"", 1) > 0
    client.flush(10000)
    print("flushed", got)

    def handler(message: object) -> None:
        dialer.turns = 0
        assert client.wait(1000) == 0
        print("handled", dialer.turns <= TURNS + 1)
        client.on_message = None

    client.on_message = handler
    client.reading = True
    for _ in range(2):
        other.publish(b"t", b"", 0)
    while client.poll() == 0 and client.on_message is handler:
        pass


main()
