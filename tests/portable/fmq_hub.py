"""A hub for one client, for tests: as much of one as a client's session can tell apart, in no hurry and with a log.

It keeps its session over connections, drops what it has stored before, and keeps what it sends until it is answered.
``pipe``'s wires carry what it says.
"""

from pipe import Link, receive, send

from headwater.connection import ONLINE
from headwater.errors import E_CLOSED
from headwater.fmq import frames, spec
from headwater.fmq.frames import Frame
from headwater.fmq.frames_hub import decode_frame
from headwater.fmq.ids import IdMaker
from headwater.fmq.values import Value, number, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.fmq.session import ClientSession
    from headwater.types import Bytes

#: 2026-11-21, as a DateTime.
TIME = b"\xb0" + (1795000000000000000).to_bytes(8, "little")
PROCESS = 5


class Window:
    """As ``RxBuf``, for a reader that keeps all."""

    def __init__(self) -> None:
        self._bytes = bytearray(1 << 16)
        self.view = memoryview(self._bytes)
        self.start = self.end = 0

    def window(self) -> int:
        return len(self._bytes)


class Hub:
    """``say`` sends a frame; ``publish``, ``push`` and ``serve`` are what it does by itself."""

    def __init__(self) -> None:
        self.rx = Window()
        self.stalled = False
        self.online = False
        self.keeps = True
        #: Whether ids are those of one life: before a board knows the time, they begin anew with each.
        self.one_life = True
        #: What is refused: (type, reason code, text).
        self.refuse: tuple[int, int, bytes] | None = None
        self.known = False
        #: The first fields of the last AUTH, how many there were, and every frame that came, as (type, head, id).
        self.auth: tuple[Any, ...] = ()
        self.log: list[tuple[int, int, bytes]] = []
        #: (topic, payload, QoS, retain) of each message, in the order of their coming; ids of all of them.
        self.stored: list[tuple[bytes, bytes, int, bool]] = []
        self.ids: list[bytes] = []
        self.duplicates = 0
        self.bad = 0
        self.ended = False
        self.refused: list[tuple[bytes, int]] = []
        self.topics: dict[bytes, int] = {}
        self.subscriptions: dict[int, tuple[Any, ...]] = {}
        #: Subscription -> (id of the CONSUME, window, NEEDACK).
        self.consumers: dict[int, tuple[bytes, int, bool]] = {}
        #: What was sent and not answered: [id, frame, state]; the state is the type of the answer awaited.
        self.pending: list[list[Any]] = []
        self.delivered: list[bytes] = []
        self.calls: list[tuple[bytes, bytes, bytes, bool]] = []
        self.replies: list[tuple[bytes, bytes]] = []
        self._open: list[bytes] = []
        self._out = bytearray()
        self._data = bytearray()
        self._ids = IdMaker(0, 0, 0)
        self._serial = 0
        self._gone = False

    # -- the face that ``pipe`` knows

    def listen(self) -> None:
        """A connection is there."""
        self._out = bytearray()
        self._data = bytearray()
        self.online = self._gone = False
        self.consumers = {}

    def lost(self) -> None:
        self.listen()

    def out(self) -> int:
        return len(self._out)

    @property
    def out_buf(self) -> bytearray:
        return self._out

    out_at = 0

    def sent(self, k: int) -> None:
        self._out = self._out[k:]

    def feed(self, n: int) -> int:
        self._data += bytes(self.rx.view[:n])
        at = 0
        f = Frame(bytearray(self._data), 1 << 20)
        while at < len(self._data):
            stop = decode_frame(f, at, len(self._data))
            if stop == 0:
                break
            if stop < 0:
                self.bad = stop
                raise AssertionError("the client sent what is no frame: %d" % stop)
            at = stop
            self._take(f)
        self._data = self._data[at:]
        return 0

    # -- what it says

    def say(self, head: int, ident: "Bytes", *values: "Any") -> None:
        """Send a frame."""
        buf = bytearray(8192)
        end = frames.encode_frame(buf, 0, len(buf), head, ident, values)
        assert end > 0, end
        self._out += buf[:end]

    def ident(self, kind: int = spec.PUBLISH) -> bytes:
        """A new id."""
        return bytes(self._ids.next(kind, 0))

    def _keep(self, ident: bytes, head: int, awaited: int, values: "tuple[Any, ...]") -> None:
        self.pending.append([ident, head, awaited, values, False])
        if self.online:
            self._send(self.pending[-1])

    def _send(self, one: "list[Any]") -> None:
        ident, head, awaited, values, before = one
        if awaited == spec.PUBCOMP:
            self.say(spec.PUBREL << 4, ident)
        else:
            self.say(head | (8 if before and head >> 4 == spec.PUBLISH else 0), ident, *values)
        one[4] = True

    def publish(self, topic: bytes, payload: bytes, qos: int = 0, retain: bool = False) -> bytes:
        """Push a message: its id."""
        ident = self.ident()
        head = spec.PUBLISH << 4 | qos << 1 | (1 if retain else 0)
        if qos:
            self._keep(ident, head, spec.ACK if qos == 1 else spec.PUBREC, (topic, (), payload))
        elif self.online:
            self.say(head, ident, topic, (), payload)
        return ident

    def give(self, subscription: int, topic: "bytes | None", payload: bytes) -> bytes:
        """Let a subscription have a message, once its consumer is there: its id."""
        ident = self.ident()
        self.pending.append(
            [ident, spec.CONSUMERESP << 4, subscription, (subscription, topic, (), payload), True]
        )
        self._hand_out()
        return ident

    def _hand_out(self) -> None:
        for one in list(self.pending):
            if one[1] == spec.CONSUMERESP << 4 and one[2] in self.consumers:
                need = self.consumers[one[2]][2]
                self.say(one[1], one[0], *one[3])
                one[2] = spec.ACK if need else 0
                if not need:
                    self.pending.remove(one)

    def end_consumer(self, subscription: int, code: int, *text: bytes) -> None:
        """The topic is gone."""
        self.say(spec.ACK << 4, self.consumers.pop(subscription)[0], code, *text)

    # -- what it is told

    def _take(self, f: Frame) -> None:
        kind = f.kind()
        ident = bytes(f.buf[f.id_at : f.id_end])
        self.log.append((kind, f.head, ident))
        assert self.online or kind == spec.AUTH, kind
        if self.refuse is not None and self.refuse[0] == kind:
            self.say(spec.ACK << 4, ident, self.refuse[1], self.refuse[2])
            return
        if kind == spec.AUTH:
            self._authenticate(f, ident)
        elif kind == spec.PUBLISH:
            self._publish(f, ident)
        elif kind == spec.PINGREQ:
            self.say(spec.ACK << 4, ident)
        elif kind == spec.PUBREL:
            if ident in self._open:
                self._open.remove(ident)
            self.say(spec.PUBCOMP << 4, ident)
        elif kind in (spec.PUBREC, spec.PUBCOMP, spec.ACK):
            self._answered(f, kind, ident)
        else:
            self._asked(f, kind, ident)

    def _authenticate(self, f: Frame, ident: bytes) -> None:
        self.auth = tuple([value(f, k) for k in range(min(f.count, 8))])
        present = self.known and self.keeps and f.count > 4 and not self.auth[4]
        if not present:
            self.subscriptions = {}
            self._open = []
            self.pending = [one for one in self.pending if one[2] != spec.PUBCOMP]
        self.known = True
        self.online = True
        self.say(spec.ACK << 4, ident, 0, PROCESS, present, TIME)
        for one in self.pending:
            if one[1] == spec.CONSUMERESP << 4:
                # It waits for a consumer again.
                one[2] = one[3][0]
            else:
                self._send(one)

    def _publish(self, f: Frame, ident: bytes) -> None:
        topic, payload = f.topic_bytes(), f.payload_bytes()
        if topic == b"$rpc/reply":
            end = [one[0] for one in self.calls if payload[: len(one[0])] == one[0]]
            assert len(end) == 1, payload
            self.replies.append((end[0], payload[len(end[0]) :]))
            return
        assert f.qos() == 0 or ident[0] & 15, "an id that may be another board's"
        if ident in self.ids:
            assert f.dup() or f.qos() == 0, "a repetition without DUP"
            self.duplicates += 1
        else:
            # Those at QoS 0 do not wait for the others.
            if f.qos():
                assert not (self.ids and self.one_life) or later(ident, self.ids[-1]), (
                    "an id that is not later"
                )
                self.ids.append(ident)
            self.stored.append((topic, payload, f.qos(), f.retain()))
        if f.qos() == 1:
            self.say(spec.ACK << 4, ident)
        elif f.qos() == 2:
            if ident not in self._open:
                self._open.append(ident)
            self.say(spec.PUBREC << 4, ident)

    def _answered(self, f: Frame, kind: int, ident: bytes) -> None:
        if kind == spec.ACK and f.asked() == spec.AUTH and f.code == 0:
            self.ended = True
            return
        if kind == spec.ACK and f.code:
            self.refused.append((ident, f.code))
            return
        for one in self.pending:
            if one[0] == ident and one[2] == kind:
                if kind == spec.PUBREC:
                    one[2] = spec.PUBCOMP
                    self._send(one)
                else:
                    self.pending.remove(one)
                    self.delivered.append(ident)
                return
        if kind == spec.PUBREC:
            self.say(spec.PUBREL << 4, ident)

    def _asked(self, f: Frame, kind: int, ident: bytes) -> None:
        answer: tuple[Any, ...] = (0,)
        if kind == spec.REGISTER:
            self.topics[value(f, 0)] = value(f, 1) or 1
        elif kind == spec.UNREGISTER:
            answer = (0,) if self.topics.pop(value(f, 0), 0) else (0x8F, b"no such topic")
        elif kind == spec.SUBSCRIBE:
            wanted = tuple([value(f, k) for k in range(f.count)])
            same = [sid for sid, other in self.subscriptions.items() if other == wanted]
            if not same:
                self._serial += 1
                same = [PROCESS << 32 | self._serial]
            self.subscriptions[same[0]] = wanted
            answer = (0, same[0])
        elif kind == spec.UNSUBSCRIBE:
            sid = value(f, 0)
            if self.subscriptions.pop(sid, None) is None:
                answer = (0x11,)
            elif sid in self.consumers:
                self.end_consumer(sid, 0)
        elif kind == spec.CONSUME and f.head & spec.ONCE:
            self.calls.append((ident, value(f, 0), bytes(f.buf[f.at[4] : f.end]), f.head & 1 == 1))
            return
        elif kind == spec.CONSUME:
            sid = value(f, 0)
            if sid in self.subscriptions:
                self.consumers[sid] = (ident, value(f, 1) or 0, f.head & 1 == 1)
                self._hand_out()
                return
            answer = (0x11,)
        elif kind == spec.SLAVEOF:
            answer = (0, b"\x44\x01\x00\x00\x7f\x5b\x07") if f.head & 1 else (0,)
        elif kind == spec.ELECT:
            answer = (None,)
        self.say(spec.ACK << 4, ident, *answer)

    def result(self, call: bytes, payload: bytes) -> bytes:
        """Answer a call, or any CONSUME with ONCE: the id of the result."""
        ident = self.ident()
        head = spec.CONSUMERESP << 4
        if next(one for one in self.calls if one[0] == call)[3]:
            self.pending.append([ident, head, spec.ACK, (call, None, (), payload), True])
        self.say(head, ident, call, None, (), payload)
        return ident

    def call(self, topic: bytes, arguments: bytes) -> bytes:
        """Ask the client, which serves ``topic``: the call's id."""
        ident = self.ident(spec.CONSUME)
        self.calls.append((ident, topic, arguments, False))
        self.say(spec.PUBLISH << 4, ident, b"$rpc/" + topic, (), arguments)
        return ident

    def quiet(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.pending or self._open or self._out or self._data)


def later(a: bytes, b: bytes) -> bool:
    """Whether id ``a`` is of a later time than ``b``."""
    return int.from_bytes(a[-8:], "little") > int.from_bytes(b[-8:], "little")


def value(f: Frame, k: int) -> "Any":
    """Field k as a Python value."""
    v = Value(f.buf)
    if k >= f.count:
        return None
    at = read(v, f.at[k], f.end)
    if v.kind == spec.STRING:
        return bytes(v.buf[v.at : v.end])
    if v.kind == spec.LIST:
        found = []
        for _ in range(v.count):
            at = read(v, at, f.end)
            found.append(bytes(v.buf[v.at : v.end]))
        return tuple(found)
    return None if v.kind == spec.NONE else v.low == 1 if v.kind == spec.BOOL else number(v)


class Got:
    """What arrived at a client: (topic, payload, QoS or "c", retain, source) of each message."""

    def __init__(self, session: "ClientSession"):
        self.session = session
        self.got: list[tuple[bytes, bytes, Any, bool, int]] = []
        self.receipts: list[int] = []
        self.results: list[tuple[int, bytes]] = []
        self.answers: list[tuple[int, int, bytes]] = []
        self.delivered: list[int] = []
        self.refused: list[tuple[int, int, bytes]] = []
        self.online: list[bool] = []
        session.on_message = self.message
        session.on_result = self.result
        session.on_answer = self.answer
        session.on_delivered = self.delivered.append
        session.on_refused = self.refusal
        session.on_online = self.online.append

    def message(self, f: Frame) -> None:
        kind: Any = f.qos() if f.kind() == spec.PUBLISH else "c"
        topic = f.topic_bytes() if f.has_topic() else b""
        self.got.append((topic, f.payload_bytes(), kind, f.kind() == 3 and f.retain(), self.session.source))
        self.receipts.append(self.session.receipt)

    def result(self, f: Frame) -> None:
        self.results.append((self.session.source, f.payload_bytes()))
        self.receipts.append(self.session.receipt)

    def answer(self, n: int, code: int) -> None:
        self.answers.append((n, code, self.session.reason()))

    def refusal(self, n: int, code: int) -> None:
        self.refused.append((n, code, self.session.reason()))

    def payloads(self, kind: "Any") -> "list[bytes]":
        return [one[1] for one in self.got if one[2] == kind]


class Pair:
    """A client's session and a hub over links: as ``pipe.Ends``."""

    def __init__(self, client: "ClientSession", links: "list[Link] | tuple[Link, ...]" = ()):
        self.client = client
        self.hub = Hub()
        self.at = Got(client)
        self.now = 0
        self.links: list[Link] = []
        self._next = list(links)
        self.reconnect = True

    def link(self) -> Link:
        return self.links[-1]

    def open(self) -> None:
        self.links.append(self._next.pop(0) if self._next else Link())
        self.hub.listen()
        assert self.client.connect(self.now) == 0

    def lose(self) -> None:
        self.client.lost()
        self.hub.lost()

    def step_up(self) -> None:
        """Carry only what the client says."""
        client: Any = self.client
        hub: Any = self.hub
        send(client, self.link().up)
        while receive(hub, self.link().up):
            pass

    def step_down(self) -> None:
        """Carry only what the hub says."""
        client: Any = self.client
        hub: Any = self.hub
        send(hub, self.link().down)
        while receive(client, self.link().down) > 0:
            pass

    def step(self) -> int:
        link = self.link()
        client: Any = self.client
        hub: Any = self.hub
        moved = send(client, link.up) + receive(hub, link.up) + send(hub, link.down)
        k = receive(client, link.down)
        return k if k < 0 else moved + k

    def run(self) -> int:
        """Carry until nothing moves; a connection that is cut is replaced. 0, or the client's status."""
        while True:
            moved = self.step()
            if moved < 0:
                # What it still has to say.
                client: Any = self.client
                send(client, self.link().up)
                self.hub.feed(self.link().up.readinto(self.hub.rx.view, 1000) or 0)
                return moved
            if self.link().broken():
                if not self.reconnect:
                    return E_CLOSED
                self.lose()
                self.open()
            elif moved == 0:
                return 0

    def connect(self) -> None:
        self.open()
        assert self.run() == 0
        assert self.client.state == ONLINE

    def quiet(self) -> None:
        """Check that nothing is left to do at either end."""
        client = self.client
        assert client.outbox.count == 0 and client.in_flight == 0
        assert client.tx_end == 0 and client.out() == 0 and not client.stalled
        assert client.rx.start == client.rx.end
        assert not any(client.taken.state), list(client.taken.state)
        assert self.hub.quiet(), (self.hub.pending, self.hub._open)


def small(rx_size: int = 128, tx_size: int = 128, window: int = 4, **options: "Any") -> "ClientSession":
    """A session with small buffers, which the hub keeps."""
    from headwater.fmq.session import ClientSession

    return ClientSession(
        b"c",
        10,
        False,
        rx_size=rx_size,
        tx_size=tx_size,
        outbox_size=512,
        slots=6,
        window=window,
        receive_window=4,
        **options,
    )


def pair(**options: "Any") -> Pair:
    """A client that is connected."""
    p = Pair(small(**options))
    p.connect()
    return p


def consumed(**options: "Any") -> "tuple[Pair, int, int]":
    """A subscription with a group, granted: the pair, its number, and the hub's id of it."""
    p = pair(**options)
    number = p.client.subscribe(b"jobs", group=b"g")
    assert number > 0 and p.run() == 0
    assert p.at.answers == [(number, 0, b"")]
    (found,) = p.hub.subscriptions
    return p, number, found
