"""The host's way through the session beside the core's: the same tests, and the same outcome for the same bytes."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipe import packets

from headwater.connection import ONLINE, RxBuf
from headwater.mqtt import server, server31, session
from headwater.mqtt import session as endpoint
from headwater.mqtt.manual_ack import ManualAck
from headwater.mqtt.packets import Packet
from headwater.mqtt.properties import Packet5
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server5 import ServerV5
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater.mqtt.topic_aliases import IncomingAliases
from headwater.mqtt.v5 import ClientV5
from headwater_host.client.connection import Chunks, take
from headwater_host.client.mqtt.fast import FastPath
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.rxbuf import GrowingRxBuf
from tests.fuzz.packets import damaged, sensible

PORTABLE = Path(__file__).parents[1] / "portable"


class WithFastPath:
    """What the host's sessions add to the core's."""

    frames: Chunks | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fast = FastPath()
        self.take_packets = self.fast.take_packets

    def enqueue(self, topic: Any, payload: Any, flags: int, properties: Any = b"") -> int:
        found = self.fast.enqueue(self, self.frames, topic, payload, flags, properties)  # type: ignore[arg-type]
        return found or super().enqueue(topic, payload, flags, properties)  # type: ignore[misc]


class FastClient(WithFastPath, ClientSession): ...


class FastServer(WithFastPath, ServerSession): ...


class FastServer31(WithFastPath, ServerSession31): ...


FAST = (
    (session, "ClientSession", FastClient),
    (server, "ServerSession", FastServer),
    (server31, "ServerSession31", FastServer31),
)
FILES = sorted(
    path
    for path in PORTABLE.glob("test_*.py")
    if path.stem.startswith(("test_mqtt_", "test_mqtt31", "test_mqtt5_", "test_late"))
)


def load(path: Path) -> ModuleType:
    """A portable test, and the helpers it imports, with the host's sessions in the place of the core's."""
    helpers = {helper.stem for helper in PORTABLE.glob("*.py")}
    before = {name: sys.modules.pop(name) for name in helpers if name in sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PORTABLE))
        for module, name, fast in FAST:
            patch.setattr(module, name, fast)
        spec = importlib.util.spec_from_file_location(f"fast_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(found)
            pipe = sys.modules.get("pipe")
            if pipe is not None:
                pipe.send = with_take(pipe.send)  # type: ignore[attr-defined]
        finally:
            for name in helpers:
                sys.modules.pop(name, None)
            sys.modules.update(before)
    return found


def with_take(send: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
    """``pipe.send`` as ``Connection`` does it, where the wire takes everything."""

    def taking(end: Any, wire: Any) -> int:
        if wire.take or wire.room or not hasattr(end, "frames"):
            return send(end, wire)
        chunks: Chunks = []
        take(end, chunks)
        return sum(wire.write(chunk, 0, len(chunk)) for chunk in chunks)

    return taking


CASES = [
    pytest.param(getattr(module, name), id=f"{path.stem}.{name}")
    for path in FILES
    for module in [load(path)]
    for name in sorted(vars(module))
    if name.startswith("test_")
]


def test_the_portable_tests_are_here_and_have_the_hosts_sessions() -> None:
    assert len(FILES) > 10
    assert len(CASES) > 100
    assert load(PORTABLE / "test_mqtt_session.py").ClientSession is FastClient


@pytest.mark.parametrize("test", CASES)
def test_portable_tests_pass_over_the_hosts_path(test: Callable[[], None]) -> None:
    test()


class Side:
    """One end that was connected and has messages under way, and what comes of what it is fed."""

    def __init__(self, kind: type[Any], options: dict[str, Any], opening: bytes) -> None:
        self.log: list[object] = []
        self.end = kind(**options)
        if isinstance(self.end, ClientSession):
            assert self.end.connect(0) == 0
            self.drain()
        else:
            self.end.listen(0)
        self.end.on_message = self._on_message
        self.end.on_delivered = lambda packet_id: self.log.append(("delivered", packet_id))
        self.feed(opening)
        assert self.end.state == ONLINE
        for i in range(6):
            self.end.publish(b"out", b"%d" % i, 1 + i % 2)
        self.log.append(self.drain())

    def _on_message(self, p: Packet) -> None:
        block = bytes(p.buf[p.props_at : p.props_end]) if isinstance(p, Packet5) else b""
        self.log.append((p.head, p.packet_id, p.topic_bytes(), p.payload_bytes(), block))
        if p.topic_bytes() == b"bad":
            raise RuntimeError("a handler that fails")

    def drain(self) -> bytes:
        sent = b""
        while (n := self.end.out()) > 0:
            sent += bytes(self.end.out_buf[self.end.out_at : self.end.out_at + n])
            self.end.sent(n)
        return sent

    def _feed(self, n: int) -> object:
        while True:
            try:
                return self.end.feed(n)
            except RuntimeError:
                self.log.append("raised")
                n = 0

    def feed(self, data: bytes, answer: bool = True) -> None:
        rx = self.end.rx
        while data or self.end.stalled:
            room = rx.window()
            part, data = data[:room], data[room:]
            rx.view[: len(part)] = part
            status = self._feed(len(part))
            if answer or self.end.stalled or not room:
                self.log.append(self.drain())
            end = self.end
            self.log.append((status, end.state, end.in_flight, end.outbox.count, end.strays, end.duplicates))
            self.log.append((end.skipped, end.stalled, rx.end - rx.start, end.packet.bad_at if status else 0))
            if status:
                return


@dataclass(frozen=True)
class Kind:
    """Two sessions to compare, and the first bytes that they are fed."""

    core: type[Any]
    fast: type[Any]
    level: int
    opening: bytes
    version: Callable[[], Any] = lambda: None


KINDS = {
    "client": Kind(ClientSession, FastClient, 4, b"\x20\x02\x00\x00"),
    "server": Kind(ServerSession, FastServer, 4, b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c"),
    "client of 5.0": Kind(
        ClientSession,
        FastClient,
        5,
        b"\x20\x03\x00\x00\x00",
        lambda: ClientV5(aliases_in=IncomingAliases(3, 20), receive_maximum=12),
    ),
    "server of 5.0": Kind(
        ServerSession, FastServer, 5, b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c", ServerV5
    ),
}


def length(n: int) -> bytes:
    return bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7))


def publish(head: int, topic: bytes, level: int, payload: bytes, block: bytes = b"\0") -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + (b"\0\x05" if head & 6 else b"")
    body += (block if level == 5 else b"") + payload
    return bytes((head,)) + length(len(body)) + body


def anything(level: int) -> st.SearchStrategy[bytes]:
    """Packets of the frequent kinds, long ones, and ones whose handler fails; some of them damaged."""
    topics = st.sampled_from([b"t", b"a/b", b"bad", b""])
    blocks = st.sampled_from([b"\0", b"\x03\x23\0\x02", b"\x02\x01\x01", b"\x02\x01\x02", b"\x80\0"])
    heads = st.sampled_from([0x30, 0x31, 0x32, 0x34, 0x3A, 0x3C])
    return st.one_of(
        sensible(level),
        damaged(sensible(level)),
        st.builds(publish, heads, topics, st.just(level), st.sampled_from([b"", b"x"]), blocks),
        st.builds(publish, heads, topics, st.just(level), st.integers(110, 400).map(bytes)),
        st.builds(
            lambda kind, packet_id: bytes((kind, 2, 0, packet_id)),
            st.sampled_from([0x40, 0x50, 0x62, 0x70]),
            st.integers(0, 8),
        ),
    )


def buffer(kind: str, extra: int) -> RxBuf:
    return GrowingRxBuf(256, 400, extra) if kind == "growing" else RxBuf(128, extra)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_same_bytes_have_the_same_outcome(kind: Kind, data: st.DataObject) -> None:
    draw = data.draw
    stream = b"".join(draw(st.lists(anything(kind.level), min_size=1, max_size=12)))
    cuts = draw(st.lists(st.integers(1, 90), max_size=10))
    of = draw(st.sampled_from(["fixed", "growing", "large"]))
    tx_size = draw(st.sampled_from([24, 40, 2000] if kind.level == 5 else [16, 24, 2000]))
    answer = draw(st.booleans())
    logs = []
    for make in (kind.core, kind.fast):
        version = kind.version()
        extra = 0 if version is None else version.room
        rx = GrowingRxBuf(extra=extra) if of == "large" else buffer(of, extra)
        options = {"tx_size": tx_size, "window": 4, "rx": rx, "version": version}
        side = Side(make, options, kind.opening)
        ManualAck(side.end, automatic=answer)
        rest = stream
        for n in [*cuts, len(stream)]:
            part, rest = rest[:n], rest[n:]
            if part and side.end.state == ONLINE:
                side.feed(part, answer)
        side.log.append(side.drain())
        logs.append(side.log)
    assert logs[1] == logs[0]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_hosts_path_is_taken(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the tests above would compare the core with itself.
    version = kind.version()
    rx = GrowingRxBuf(extra=0 if version is None else version.room)
    side = Side(kind.fast, {"rx": rx, "version": version}, kind.opening)

    def never(*_: object) -> int:
        raise AssertionError("the core was asked")

    monkeypatch.setattr(endpoint, "take_packets", never)
    level = kind.level
    packets = publish(0x30, b"t", level, b"x") + publish(0x33, b"t", level, b"x")
    if level == 4:
        # With topic aliases, messages at QoS 2 are the core's.
        packets += publish(0x34, b"t", level, b"x").replace(b"\0\x05", b"\0\x08") + b"\x62\x02\0\x08"
    packets += b"\x40\x02\0\x01\x50\x02\0\x02\x70\x02\0\x02"
    side.feed(packets + publish(0x30, b"t", level, bytes(197)))
    events = [entry[:2] for entry in side.log if isinstance(entry, tuple)]
    found = [packet_id for head, packet_id in events if head in range(0x30, 0x40)]
    assert found == ([0, 5, 8, 0] if level == 4 else [0, 5, 0])
    assert [packet_id for what, packet_id in events if what == "delivered"] == [1, 2]
    assert side.end.rx.start == side.end.rx.end


# ---- out -------------------------------------------------------------------------------------------------------------

TOPICS = st.sampled_from(
    [b"t", b"a/b", "ä/温".encode(), b"", b"a/#", b"\xff", b"x" * 300, bytearray(b"t"), "text"]
)
BODIES = st.binary(max_size=300) | st.sampled_from([bytearray(b"array"), memoryview(b"view"), "text", None])
# None, a user property, a topic alias (which a program must not set), and what is no property block.
BLOCKS: st.SearchStrategy[Any] = st.sampled_from(
    [b"", b"\0", b"\x07\x26\0\x01a\0\x01b", b"\x03\x23\0\x01", bytearray(b"\x02\x01\x01"), "text"]
)
# CONNACK's properties: none; Maximum QoS 1; no RETAIN; a Maximum Packet Size of 20; a Receive Maximum of 2.
LIMITS = st.sampled_from([b"", b"\x24\x01", b"\x25\0", b"\x27\0\0\0\x14", b"\x21\0\x02"])
STEPS = st.one_of(
    st.tuples(st.just("publish"), TOPICS, BODIES, st.integers(-1, 3), st.booleans(), BLOCKS),
    st.tuples(st.sampled_from(["drain", "answer", "answer", "half"])),
    st.tuples(st.just("reconnect"), st.booleans(), LIMITS),
)


class Publisher:
    """A client whose packets are taken as ``Connection`` takes them, or through ``out``."""

    def __init__(self, kind: type[Any], version: Any = None) -> None:
        self.log: list[object] = []
        box = GrowingOutbox(64, 5, 600)
        self.end = kind(b"c", 0, False, window=3, outbox=box, tx_size=700, version=version)
        self.end.on_delivered = lambda packet_id: self.log.append(("delivered", packet_id))
        self.frames: Chunks = []
        self.unanswered: list[tuple[int, int]] = []
        self.reconnect(False)

    def reconnect(self, session_present: bool, limits: bytes = b"") -> None:
        if self.end.state == ONLINE:
            self.drain()
            self.end.lost()
        self.frames.clear()
        self.unanswered.clear()
        assert self.end.connect(0) == 0
        if isinstance(self.end, WithFastPath):
            self.end.frames = self.frames
        self.drain()
        block = b"" if self.end.v5 is None else bytes((len(limits),)) + limits
        self.feed(bytes((0x20, 2 + len(block), session_present, 0)) + block)
        self.drain()

    def feed(self, data: bytes) -> None:
        self.end.rx.window()
        self.end.rx.view[: len(data)] = data
        self.log.append(self.end.feed(len(data)))

    def drain(self) -> None:
        if hasattr(self.end, "frames"):
            take(self.end, self.frames)
            sent = b"".join(self.frames)
            self.frames.clear()
        else:
            sent = b""
            while (n := self.end.out()) > 0:
                sent += bytes(self.end.out_buf[self.end.out_at : self.end.out_at + n])
                self.end.sent(n)
        # What answers may leave before or behind what is published.
        kinds: dict[bool, list[bytes]] = {True: [], False: []}
        for head, begin, stop in packets(sent):
            kinds[head >> 4 == 3].append(sent[begin:stop])
            if head & 6 and head >> 4 == 3:
                at = stop - len(sent[begin:stop]) + 2 + (stop - begin > 129)
                name = int.from_bytes(sent[at : at + 2], "big")
                packet_id = int.from_bytes(sent[at + 2 + name : at + 4 + name], "big")
                self.unanswered.append((0x40 if head & 2 else 0x50, packet_id))
            elif head == 0x62:
                self.unanswered.append((0x70, int.from_bytes(sent[stop - 2 : stop], "big")))
        self.log.append(kinds)

    def do(self, step: tuple[Any, ...]) -> None:
        what, *arguments = step
        if what == "publish":
            *message, block = arguments
            self.log.append(self.end.publish(*message, b"" if self.end.v5 is None else block))
        elif what == "reconnect":
            self.reconnect(*arguments)
        elif what == "drain":
            self.drain()
        else:
            self.drain()
            count = (len(self.unanswered) + 1) // 2 if what == "half" else len(self.unanswered)
            now, self.unanswered = self.unanswered[:count], self.unanswered[count:]
            self.feed(b"".join(bytes((kind, 2)) + packet_id.to_bytes(2, "big") for kind, packet_id in now))
        # Both send all that can leave, so that what has left is the same.
        self.drain()
        box = self.end.outbox
        self.log.append(
            (box.count, box.head, box.next, bytes(box.state), self.end.in_flight, self.end.strays)
        )


@pytest.mark.parametrize("version", [lambda: None, ClientV5], ids=["3.1.1", "5.0"])
@settings(max_examples=250, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_the_same_calls_send_the_same_packets(
    version: Callable[[], Any], steps: list[tuple[Any, ...]]
) -> None:
    sides = [Publisher(ClientSession, version()), Publisher(FastClient, version())]
    for step in [*steps, ("reconnect", True), ("drain",), ("answer",), ("answer",), ("answer",)]:
        for side in sides:
            side.do(step)
        assert sides[1].log == sides[0].log


def test_a_message_that_can_leave_is_joined_and_not_read_back() -> None:
    side = Publisher(FastClient)
    assert [side.end.publish(b"t", b"%d" % i, 1) for i in range(4)] == [1, 2, 3, 4]
    assert side.frames == [b"\x32\x06\0\x01t\0%c%d" % (i + 1, i) for i in range(3)]
    # The fourth is beyond the window: it leaves when there is room, as the core's messages do.
    assert side.end.out() == 0
    side.feed(b"\x40\x02\0\x01")
    assert side.end.out() == 8
