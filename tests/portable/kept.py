"""A keeper, and the servers it may connect to over lines that can be cut; time passes where it waits."""

from pipe import Line, Wire, receive, send

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import ONLINE, Keeper
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.wire import TICKS_MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.mqtt.packets import Packet


class Clock:
    def __init__(self, now: int = 0):
        self.now = now


class Site:
    """A server and the way to it. ``wait`` is the only thing that takes time, and the server works meanwhile."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.lines: list[Line] = []
        #: When each connection was tried.
        self.tried: list[int] = []
        self.got: list[bytes] = []
        self.filters: list[tuple[bytes, int]] = []
        self.sessions = 0
        self.code = 0
        self.granted = -1
        self.away: OSError | MemoryError | None = None
        self.deaf = False
        self.up = (0, 0, 0)
        #: What the server is made with.
        self.options: dict[str, Any] = {}
        self.server = ServerSession()
        self.forget()

    def forget(self) -> None:
        """A new server, which knows nothing."""
        self.server = ServerSession(**self.options)
        self.server.on_message = lambda m: self.got.append(m.payload_bytes())
        self.server.on_connect = self.connecting
        self.server.on_subscribe = self.subscribed
        if self.lines:
            self.lines[-1].hung_up = True

    def connecting(self, connect: object, packet: "Packet") -> int:
        return self.code or (SESSION_PRESENT if self.server.has_session else 0)

    def subscribed(self, packet: "Packet", qos: int) -> int:
        self.filters.append((packet.topic_bytes(), qos))
        return qos if self.granted < 0 else self.granted

    def open(self) -> Line:
        self.tried.append(self.clock.now)
        if self.away is not None:
            raise self.away
        self.lines.append(Line(Wire(*self.up), Wire()))
        self.server.lost()
        self.server.listen(self.clock.now)
        return self.lines[-1]

    def ticks_ms(self) -> int:
        return self.clock.now

    def wait(self, ms: int) -> None:
        assert ms > 0
        self.clock.now = (self.clock.now + ms) & TICKS_MASK
        if self.lines and not self.deaf and not self.line().hung_up and not self.line().closed:
            self.serve()

    def serve(self) -> None:
        line = self.line()
        moved = 1
        while moved:
            moved = receive(self.server, line.up)
            assert moved >= 0, moved
            moved += send(self.server, line.down)
        self.server.poll(self.clock.now)

    def line(self) -> Line:
        return self.lines[-1]

    def cut(self) -> None:
        self.line().hung_up = True


class PollSite(Site):
    """One that opens without making anybody wait: ``slow`` polls later, -1 for never."""

    def __init__(self, clock: Clock, slow: int = 3):
        super().__init__(clock)
        self.slow = slow
        self.left = -2
        self.hung_up = 0

    def ready(self) -> bool:
        if self.left == -2:
            self.left = self.slow
        if self.left > 0:
            self.left -= 1
        return self.left == 0

    def open(self) -> Line:
        assert self.left == 0, "open would wait"
        self.left = -2
        return super().open()

    def hang_up(self) -> None:
        self.left = -2
        self.hung_up += 1


class Kept:
    """A keeper of one client, and its sites."""

    def __init__(self, *sites: Site, start: int = 0, keep_alive: int = 60, **options: object):
        self.clock = sites[0].clock if sites else Clock(start)
        self.sites = sites or (Site(self.clock),)
        self.site = self.sites[0]
        self.client = Client(self.site, b"c", clean_start=False, keep_alive=keep_alive)
        self.keeper = Keeper(self.client, self.sites, **options)  # type: ignore[arg-type]
        self.events: list[object] = []
        self.answers: list[tuple[bytes, int]] = []
        self.keeper.on_online = lambda present: self.events.append(present)
        self.keeper.on_offline = lambda status: self.events.append(status)
        self.keeper.on_answer = lambda topic_filter, code: self.answers.append((bytes(topic_filter), code))

    def online(self) -> "Kept":
        self.keeper.start()
        assert self.keeper.wait(200) == 0
        assert self.keeper.state == ONLINE, self.keeper.status
        return self

    def until(self, state: int, ms: int = 1000000) -> int:
        """Wait for a state: how long that took."""
        begin = self.clock.now
        while self.keeper.state != state:
            self.keeper.wait(20)
            took = (self.clock.now - begin) & TICKS_MASK
            assert took <= ms, (self.keeper.state, self.keeper.status)
        return (self.clock.now - begin) & TICKS_MASK
