"""A hub over lines that fail and close, and a keeper of a client there; time passes where it waits."""

from fmq_hub import Hub
from pipe import Line, Wire, receive, send

from headwater.fmq.client import Client
from headwater.fmq.keeper import ONLINE, Keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.fmq.frames import Frame


class Dialer:
    """Opens lines to the hub; time passes only in ``wait``."""

    def __init__(self, hub: Hub):
        self.hub = hub
        self.lines: list[Line] = []
        self.now = 0
        self.faults = (0, 0, 0)
        self.deaf = False

    def open(self) -> Line:
        self.lines.append(Line(Wire(*self.faults), Wire(*self.faults)))
        self.hub.listen()
        return self.lines[-1]

    def ticks_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        self.now += ms
        self.serve()

    def serve(self) -> None:
        line = self.lines[-1]
        hub: Any = self.hub
        if not self.deaf:
            while receive(hub, line.up) + send(hub, line.down):
                pass


class Kept:
    """A keeper, its hub, and what it told."""

    def __init__(self, clean: bool = False, **options: "object"):
        self.hub = Hub()
        self.dialer = Dialer(self.hub)
        self.client = Client(self.dialer, b"board", clean_start=clean)
        self.keeper = Keeper(self.client, (), **options)
        self.answers: list[tuple[bytes, int]] = []
        self.got: list[tuple[bytes, bytes]] = []
        self.keeper.on_answer = lambda topic_filter, code: self.answers.append((bytes(topic_filter), code))
        self.client.on_message = self.take

    def take(self, f: "Frame") -> None:
        source = self.client.session.source
        self.got.append((bytes(self.keeper.topic_of(source)) if source else b"", f.payload_bytes()))

    def until(self, true: "object") -> None:
        for _ in range(10000):
            if true():  # type: ignore[operator]
                return
            assert self.keeper.wait(20) == 0, self.keeper.status
        raise AssertionError("the condition did not become true")

    def online(self) -> "Kept":
        self.keeper.start()
        self.until(lambda: self.keeper.state == ONLINE)
        return self

    def settled(self) -> None:
        """Until nothing happens any more."""
        assert self.keeper.wait(500) == 0

    def again(self, forget: bool = False) -> None:
        """Another connection, to a hub that may have lost the session."""
        connections = self.keeper.connections
        if forget:
            self.hub.known = False
        self.dialer.lines[-1].hung_up = True
        self.until(lambda: self.keeper.connections > connections)
        self.settled()

    def frames(self, kind: int) -> int:
        return sum(one[0] == kind for one in self.hub.log)
