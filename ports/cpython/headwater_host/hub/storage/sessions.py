"""Process numbers, sessions, QoS 2 handshakes, wills."""

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headwater.mqtt import spec5
from headwater_host.hub.errors import RefusedError
from headwater_host.hub.storage.writer import Writer

#: ``received``: stored and answered with PUBREC, its PUBREL is to come. ``released``: PUBREL is sent, its PUBCOMP is to
#: come. ``retained``: it was retained when its client subscribed, and is not answered.
Side = Literal["received", "released", "retained"]


#: Reserved process numbers below which a follower asks for more.
_FEW = 100


@dataclass(frozen=True)
class Subscription:
    """The fields of SUBSCRIBE; ``serial`` is its number among those of the client."""

    serial: int
    topic: str
    tags: tuple[str, ...] = ()
    condition: str = ""
    group: str = ""


@dataclass
class Session:
    """The stored state of a client. ``about`` is any JSON object of the hub."""

    client: str
    about: dict[str, Any]
    subscriptions: dict[int, Subscription] = field(default_factory=dict)
    #: Message ids, oldest first.
    received: dict[bytes, None] = field(default_factory=dict)
    released: dict[bytes, None] = field(default_factory=dict)
    retained: dict[bytes, None] = field(default_factory=dict)


class Sessions:
    """All sessions. Every change is on the disk when the storage's next ``after`` calls back."""

    def __init__(self, writer: Writer):
        self._writer = writer
        self._sessions: dict[str, Session] = {}
        self._processes: dict[str, int] = {}
        #: Of a follower: process numbers that its leader has reserved for it.
        self._lent: deque[int] | None = None
        #: The last process number that was given.
        self.last_process = 0
        #: Wills that the file held when it was opened, by process number: their clients were connected then.
        self.wills: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, client: str) -> bool:
        return client in self._sessions

    def get(self, client: str) -> Session | None:
        """Return a client's session, to be read only."""
        return self._sessions.get(client)

    def all(self) -> list[Session]:
        """Return every session, to be read only."""
        return list(self._sessions.values())

    # -- process numbers ---------------------------------------------------------------------------------------------

    def process(self, client: str) -> int:
        """Return the process number of a client, a new one if it has none. Without a name it is new each time."""
        if self._lent is not None:
            return self._borrow(self._lent)
        known = self._processes.get(client)
        if known is not None:
            return known
        self.last_process += 1
        self._writer.change("counter", "process", self.last_process)
        if client:
            self._processes[client] = self.last_process
            self._writer.change("client", client, self.last_process)
        return self.last_process

    def reserve(self, count: int) -> int:
        """Reserve process numbers for a follower's clients; return the first."""
        first = self.last_process + 1
        self.last_process += count
        self._writer.change("counter", "process", self.last_process)
        return first

    def follow(self) -> None:
        """Give only process numbers that the leader has reserved for this follower."""
        self._lent = deque()

    def lend(self, first: int, last: int) -> None:
        """Add reserved process numbers."""
        assert self._lent is not None
        self._lent.extend(range(first, last + 1))

    @property
    def is_short(self) -> bool:
        """True if a follower should reserve more process numbers."""
        return self._lent is not None and len(self._lent) < _FEW

    @staticmethod
    def _borrow(lent: deque[int]) -> int:
        if not lent:
            raise RefusedError(spec5.SERVER_BUSY, "this slave has no process numbers left; try again")
        return lent.popleft()

    def forget(self, client: str) -> None:
        """Forget a client's process number, which is never given again."""
        if self._processes.pop(client, None) is not None:
            self._writer.change("forget", client)

    @property
    def clients(self) -> dict[str, int]:
        """Process numbers by client, to be read only."""
        return self._processes

    # -- sessions ----------------------------------------------------------------------------------------------------

    def save(self, client: str, about: dict[str, Any]) -> Session:
        """Begin a session, or change what is kept about it."""
        session = self._sessions.get(client)
        if session is None:
            session = self._sessions[client] = Session(client, about)
        session.about = about
        self._writer.change("session", client, about)
        return session

    def end(self, client: str) -> None:
        """Delete a session and everything in it, if there is one."""
        if self._sessions.pop(client, None) is not None:
            self._writer.change("end", client)

    def subscribe(self, client: str, subscription: Subscription) -> None:
        """Keep a subscription of a client that has a session."""
        self._sessions[client].subscriptions[subscription.serial] = subscription
        self._writer.change("subscribe", client, subscription.serial, asdict(subscription))

    def unsubscribe(self, client: str, serial: int) -> bool:
        """Delete a subscription; return whether there was one."""
        session = self._sessions.get(client)
        if session is None or session.subscriptions.pop(serial, None) is None:
            return False
        self._writer.change("unsubscribe", client, serial)
        return True

    def hold(self, client: str, side: Side, ident: bytes) -> None:
        """Note that a handshake has begun."""
        ids: dict[bytes, None] = getattr(self._sessions[client], side)
        if ident not in ids:
            ids[ident] = None
            self._writer.change("hold", client, side, ident.hex())

    def release(self, client: str, side: Side, ident: bytes) -> bool:
        """Note that a handshake is done; return whether it was in progress."""
        session = self._sessions.get(client)
        if session is None or ident not in getattr(session, side):
            return False
        del getattr(session, side)[ident]
        self._writer.change("release", client, side, ident.hex())
        return True

    # -- wills -------------------------------------------------------------------------------------------------------

    def keep_will(self, process: int, will: dict[str, Any]) -> None:
        """Store the will of a client, instead of an earlier one with this process number."""
        self._writer.change("will", process, will)

    def forget_will(self, process: int) -> None:
        """Delete a will that is published or taken back."""
        self._writer.change("unwill", process)

    # -- what a file held --------------------------------------------------------------------------------------------

    def replay(self, kind: str, values: tuple[Any, ...]) -> None:
        """Make a change of the leader, in memory only."""
        if kind == "session" and values[0] in self._sessions:
            self._sessions[values[0]].about = values[1]
        elif kind == "forget":
            self._processes.pop(values[0], None)
        elif kind == "end":
            self._sessions.pop(values[0], None)
        elif kind == "unsubscribe":
            self._sessions[values[0]].subscriptions.pop(values[1], None)
        elif kind == "release":
            client, side, ident = values
            getattr(self._sessions[client], side).pop(bytes.fromhex(ident), None)
        elif kind == "unwill":
            self.wills.pop(values[0], None)
        else:
            self.restore(kind, values)

    def restore(self, kind: str, values: tuple[Any, ...]) -> None:
        """Take in a row of the file."""
        if kind == "client":
            self._processes[values[0]] = values[1]
        elif kind == "session":
            self._sessions[values[0]] = Session(*values)
        elif kind == "subscribe":
            client, serial, body = values
            body = Subscription(**{**body, "tags": tuple(body["tags"])})
            self._sessions[client].subscriptions[serial] = body
        elif kind == "will":
            self.wills[values[0]] = values[1]
        else:
            client, side, ident = values
            getattr(self._sessions[client], side)[bytes.fromhex(ident)] = None
