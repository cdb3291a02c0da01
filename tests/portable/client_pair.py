"""A client over lines that take and give what they like, fail, and close; a server's session is behind them."""

from pipe import Line, Wire, receive, send

from headwater.errors import HeadwaterError
from headwater.mqtt.client import Client
from headwater.mqtt.server import ServerSession
from headwater.wire import TICKS_MASK


class Dialer:
    """Opens lines to ``server``; time passes only in ``wait``. ``wires`` makes the wires of a connection."""

    def __init__(self, server: ServerSession, start: int = 0):
        self.server = server
        self.lines: list[Line] = []
        self.now = start
        self.waits = 0
        self.faults = (0, 0, 0)
        self.refuse: OSError | None = None
        self.deaf = False

    def open(self) -> Line:
        if self.refuse is not None:
            raise self.refuse
        self.lines.append(Line(Wire(*self.faults), Wire(*self.faults)))
        self.server.lost()
        self.server.listen(self.now)
        return self.lines[-1]

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        assert ms > 0
        self.waits += 1
        self.now = (self.now + ms) & TICKS_MASK
        self.serve()

    def serve(self) -> None:
        """The server's turn."""
        line = self.lines[-1]
        moved = 0 if self.deaf else 1
        while moved:
            moved = receive(self.server, line.up)
            assert moved >= 0, moved
            moved += send(self.server, line.down)
        if not self.deaf:
            self.server.poll(self.now)

    def line(self) -> Line:
        return self.lines[-1]


class Pair:
    """A connected client; ``got`` has what arrived at either end."""

    def __init__(self, start: int = 0, **options: object):
        options.setdefault("clean_start", False)
        self.server = ServerSession()
        self.dialer = Dialer(self.server, start)
        self.client = Client(self.dialer, b"c", **options)
        self.at_server: list[bytes] = []
        self.at_client: list[bytes] = []
        self.delivered: list[int] = []
        self.server.on_message = lambda p: self.at_server.append(p.payload_bytes())
        self.client.on_message = lambda p: self.at_client.append(p.payload_bytes())
        self.client.on_delivered = self.delivered.append

    def settle(self) -> None:
        for _ in range(200):
            assert self.client.poll() == 0
            self.dialer.serve()

    def settle_server(self) -> None:
        for _ in range(200):
            self.dialer.serve()


def raised(call: object, *arguments: object) -> int:
    """The code of the HeadwaterError that a call raises."""
    try:
        call(*arguments)  # type: ignore[operator]
    except HeadwaterError as error:
        return error.code
    raise AssertionError("nothing was raised")
