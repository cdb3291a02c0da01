"""The host's way through the session beside the core's: the same tests, and the same outcome for the same bytes."""

import importlib.util
import sys
from collections.abc import Callable
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
from headwater.mqtt.server import ServerSession
from headwater.mqtt.server31 import ServerSession31
from headwater.mqtt.session import ClientSession
from headwater_host.client.mqtt.fast import FastEndpoint
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.rxbuf import GrowingRxBuf
from tests.fuzz.packets import damaged, sensible

PORTABLE = Path(__file__).parents[1] / "portable"


class FastClient(FastEndpoint, ClientSession): ...


class FastServer(FastEndpoint, ServerSession): ...


class FastServer31(FastEndpoint, ServerSession31): ...


FAST = (
    (session, "ClientSession", FastClient),
    (server, "ServerSession", FastServer),
    (server31, "ServerSession31", FastServer31),
)
FILES = sorted(
    path
    for path in PORTABLE.glob("test_*.py")
    if path.stem.startswith(("test_mqtt_", "test_mqtt31", "test_late"))
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
        if wire.take or wire.room or not isinstance(end, FastEndpoint):
            return send(end, wire)
        chunks: list[bytes | bytearray | memoryview] = []
        end.take(chunks)
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
        self.log.append((p.head, p.packet_id, p.topic_bytes(), p.payload_bytes()))
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


OPENINGS = {
    (ClientSession, FastClient): b"\x20\x02\x00\x00",
    (ServerSession, FastServer): b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01c",
}
LONG = st.builds(
    lambda size, qos: b"".join(
        (
            bytes((0x30 | qos << 1,)),
            length(size + (4 if qos else 2) + 1),
            b"\0\x01t",
            b"\0\x07"[: 2 * (qos > 0)],
            bytes(size),
        )
    ),
    st.integers(110, 400),
    st.integers(0, 2),
)


def length(n: int) -> bytes:
    return bytes((n,)) if n < 128 else bytes((n & 127 | 128, n >> 7))


BAD_HANDLER = st.just(b"\x30\x06\x00\x03badx") | st.just(b"\x32\x08\x00\x03bad\x00\x05x")
ACKS = st.builds(
    lambda kind, packet_id: bytes((kind, 2, 0, packet_id)),
    st.sampled_from([0x40, 0x50, 0x62, 0x70]),
    st.integers(0, 8),
)
ANY = sensible(4) | ACKS | ACKS | LONG | BAD_HANDLER
BUFFERS: dict[str, Callable[[], RxBuf]] = {
    "growing": lambda: GrowingRxBuf(256, 400),
    "fixed": lambda: RxBuf(128),
    "large": lambda: GrowingRxBuf(),
}


@pytest.mark.parametrize("kinds", OPENINGS, ids=["client", "server"])
@settings(max_examples=600, deadline=None)
@given(
    st.lists(ANY | damaged(sensible(4)), min_size=1, max_size=12).map(b"".join),
    st.lists(st.integers(1, 90), max_size=10),
    st.sampled_from(sorted(BUFFERS)),
    st.sampled_from([16, 24, 2000]),
    st.booleans(),
)
def test_the_same_bytes_have_the_same_outcome(
    kinds: tuple[type[Any], type[Any]], data: bytes, cuts: list[int], buffer: str, tx_size: int, answer: bool
) -> None:
    logs = []
    for kind in kinds:
        options = {"tx_size": tx_size, "window": 4, "rx": BUFFERS[buffer]()}
        side = Side(kind, options, OPENINGS[kinds])
        ManualAck(side.end, automatic=answer)
        rest = data
        for n in [*cuts, len(data)]:
            part, rest = rest[:n], rest[n:]
            if part and side.end.state == ONLINE:
                side.feed(part, answer)
        side.log.append(side.drain())
        logs.append(side.log)
    assert logs[1] == logs[0]


@pytest.mark.parametrize("kinds", OPENINGS, ids=["client", "server"])
def test_the_hosts_path_is_taken(kinds: tuple[type[Any], type[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the tests above would compare the core with itself.
    side = Side(kinds[1], {"rx": GrowingRxBuf()}, OPENINGS[kinds])

    def never(*_: object) -> int:
        raise AssertionError("the core was asked")

    monkeypatch.setattr(side.end, "_take_packet", never)
    monkeypatch.setattr(endpoint, "_packet", never)
    packets = b"\x30\x04\0\x01tx\x33\x06\0\x01t\0\x07x\x34\x05\0\x01t\0\x08\x62\x02\0\x08\x40\x02\0\x01"
    side.feed(packets + b"\x50\x02\0\x02\x70\x02\0\x02" + b"\x30\xc8\x01\0\x01t" + bytes(197))
    events = [entry[:2] for entry in side.log if isinstance(entry, tuple)]
    assert [packet_id for head, packet_id in events if head in range(0x30, 0x40)] == [0, 7, 8, 0]
    assert [packet_id for what, packet_id in events if what == "delivered"] == [1, 2]
    assert side.end.rx.start == side.end.rx.end


# ---- out -------------------------------------------------------------------------------------------------------------

TOPICS = st.sampled_from(
    [b"t", b"a/b", "ä/温".encode(), b"", b"a/#", b"\xff", b"x" * 300, bytearray(b"t"), "text"]
)
BODIES = st.binary(max_size=300) | st.sampled_from([bytearray(b"array"), memoryview(b"view"), "text", None])
STEPS = st.one_of(
    st.tuples(st.just("publish"), TOPICS, BODIES, st.integers(-1, 3), st.booleans()),
    st.tuples(st.sampled_from(["drain", "answer", "answer", "half"])),
    st.tuples(st.just("reconnect"), st.booleans()),
)


class Publisher:
    """A client whose packets are taken as ``Connection`` takes them, or through ``out``."""

    def __init__(self, kind: type[Any]) -> None:
        self.log: list[object] = []
        self.end = kind(b"c", 0, False, window=3, outbox=GrowingOutbox(64, 5, 600), tx_size=700)
        self.end.on_delivered = lambda packet_id: self.log.append(("delivered", packet_id))
        self.frames: list[bytes | bytearray | memoryview] = []
        self.unanswered: list[tuple[int, int]] = []
        self.reconnect(False)

    def reconnect(self, session_present: bool) -> None:
        if self.end.state == ONLINE:
            self.drain()
            self.end.lost()
        self.frames.clear()
        self.unanswered.clear()
        assert self.end.connect(0) == 0
        if isinstance(self.end, FastEndpoint):
            self.end.frames = self.frames
        self.drain()
        self.feed(bytes((0x20, 2, session_present, 0)))
        self.drain()

    def feed(self, data: bytes) -> None:
        self.end.rx.window()
        self.end.rx.view[: len(data)] = data
        self.log.append(self.end.feed(len(data)))

    def drain(self) -> None:
        if isinstance(self.end, FastEndpoint):
            self.end.take(self.frames)
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
            self.log.append(self.end.publish(*arguments))
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


@settings(max_examples=500, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_the_same_calls_send_the_same_packets(steps: list[tuple[Any, ...]]) -> None:
    sides = [Publisher(ClientSession), Publisher(FastClient)]
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
