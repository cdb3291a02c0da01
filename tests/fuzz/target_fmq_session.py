"""Targets: what FMQ's session makes of arbitrary bytes in arbitrary pieces.

An input is a byte of options (bits, from the lowest: no sink; acknowledged by the application; fed before AUTH is
answered; handlers raise), a byte that chooses the receive buffer and the pieces, and the stream. What may be delivered
of it is what whole frames, one behind the other, say.
"""

from typing import Any

from fmq_hub import TIME
from pipe import drain, feed

from headwater.connection import ERROR, ONLINE
from headwater.errors import E_RX_TOO_LARGE, E_RX_WINDOW, PEER, blame
from headwater.fmq import frames, frames_hub, spec
from headwater.fmq.frames import Frame
from headwater.fmq.session import ClientSession
from headwater.streaming import stream_to

NO_SINK, APPLICATION_ACKS, BEFORE_AUTH, RAISING = 1, 2, 4, 8
RX_SIZES = (64, 100, 200, 512)
PIECES = ([1000000], [7], [1, 30], [3, 2, 61, 5])
TX, WINDOW = 64, 4
#: The id that AUTH's answer and seeds have, and the subscription that seeds belong to.
AUTH_ID = b"\x00\x00\xb0\x01" + bytes(6) + b"\x01"
SUBSCRIPTION = b"\x35\x01\x00\x00\x00\x05"
#: A message that begins so makes its handler raise, when handlers raise.
RAISES = b"!"


class RaisedError(Exception):
    """By a handler."""


class Watched:
    """A session, fed; ``messages`` were delivered, ``out`` is what it said, ``raised`` how often a handler did."""

    def __init__(self, rx: int, options: int):
        self.end = ClientSession(
            b"c",
            0,
            False,
            rx_size=rx,
            tx_size=TX,
            outbox_size=128,
            slots=4,
            receive_window=WINDOW,
            requests=4,
        )
        self.options = options
        self.messages: list[tuple[int, bytes, bytes]] = []
        self.out = b""
        self.raised = 0
        self.end.on_message = self._message
        self.end.auto_ack = not options & APPLICATION_ACKS
        if not options & NO_SINK:
            stream_to(self.end, self)
        self._large: tuple[int, bytes] | None = None
        self._payload = bytearray()
        self.online()

    def online(self) -> None:
        end = self.end
        assert end.connect(0) == 0
        said = drain(end)  # type: ignore[arg-type]
        if self.options & BEFORE_AUTH:
            return
        f = Frame(bytearray(said), 1000)
        assert frames_hub.decode_frame(f, 0, len(said)) == len(said)
        buf = bytearray(100)
        n = frames.encode_frame(buf, 0, 100, 0xE0, said[f.id_at : f.id_end], (0, 5, True, TIME))
        assert feed(end, bytes(buf[:n])) == 0  # type: ignore[arg-type]
        end.feeding = False
        assert end.state == ONLINE
        if not any(state == 16 for state in end.requests.state):
            end.requests.put(end.requests.free(), 16, SUBSCRIPTION, 0, len(SUBSCRIPTION))
        for i in range(end.requests.places):
            # Of what is consumed, something is to be acknowledged.
            if end.requests.state[i] == 16:
                end.requests.more[i] = 1

    def _message(self, f: Frame) -> None:
        self._take(f.kind(), f.topic_bytes() if f.has_topic() else b"", f.payload_bytes())

    def _take(self, kind: int, topic: bytes, payload: bytes) -> None:
        if self.options & RAISING and payload.startswith(RAISES):
            raise RaisedError
        self.messages.append((kind, topic, payload))

    def open(self, f: Frame, size: int) -> bool:
        assert self._large is None, "open twice"
        self._large = (f.kind(), f.topic_bytes() if f.has_topic() else b"")
        self._payload = bytearray()
        return True

    def write(self, buf: Any, at: int, n: int) -> None:
        assert self._large is not None and n > 0
        self._payload += bytes(buf[at : at + n])

    def close(self, complete: bool) -> None:
        assert self._large is not None, "closed twice"
        kind, topic = self._large
        self._large = None
        if complete:
            self._take(kind, topic, bytes(self._payload))

    def _feed(self, n: int) -> int:
        while True:
            try:
                return self.end.feed(n)
            except RaisedError:
                self.raised += 1
                n = 0

    def feed(self, stream: bytes, pieces: list[int]) -> int:
        """Feed the stream in pieces, and send what there is to be sent: the status."""
        end = self.end
        at = turn = 0
        steps = 0
        while at < len(stream) or end.stalled:
            steps += 1
            assert steps <= 20 * len(stream) + 20, "it goes on for ever"
            room = end.rx.window()
            n = min(pieces[turn % len(pieces)], room, len(stream) - at)
            assert n or end.stalled, "it takes nothing, and waits for nothing"
            end.rx.view[:n] = stream[at : at + n]
            at += n
            turn += 1
            status = self._feed(n)
            end.feeding = False
            self.out += drain(end)  # type: ignore[arg-type]
            if status:
                assert end.state == ERROR and end.feed(0) == status
                return status
        return 0


def session(data: bytes) -> None:
    """The stream byte by byte and in pieces: the same outcome, and no more than was in it."""
    if len(data) < 2:
        return
    options, shape, stream = data[0], data[1], data[2:]
    outcomes = []
    for pieces in ([1], PIECES[shape >> 2 & 3]):
        one = Watched(RX_SIZES[shape & 3], options)
        sizes = footprint(one.end)
        status = one.feed(stream, pieces)
        assert footprint(one.end) == sizes, "something grows"
        assert status == 0 or blame(status) == PEER or status in (E_RX_TOO_LARGE, E_RX_WINDOW) or status < -59
        outcomes.append(
            (status, one.messages, one.raised, one.end.skipped, one.end.strays, one.end.duplicates)
        )
        _is_in_the_stream(one, stream)
        _is_frames(one.out)
        again(one)
    assert outcomes[0] == outcomes[1]


def footprint(end: ClientSession) -> list[int]:
    """What must not grow."""
    return [
        len(part)
        for part in (end.tx, end.rx.buf, end.outbox.buf, end.taken.ids, end.requests.ids, end.large_ident)
    ]


def _is_in_the_stream(one: Watched, stream: bytes) -> None:
    """Each message that was delivered is one of the stream's, in its order."""
    wanted = []
    f = Frame(bytearray(stream), 1 << 24)
    at = 0
    while at < len(stream):
        stop = frames.decode_header(f, at, len(stream))
        if not 0 < stop <= len(stream):
            break
        bad = frames.decode_fields(f)
        if bad and stop - at <= one.end.rx.capacity:
            break
        # A large one is not looked at behind a topic that does not fit.
        at = stop
        if not bad and f.kind() in (spec.PUBLISH, spec.CONSUMERESP):
            topic = f.topic_bytes() if f.has_topic() else b""
            wanted.append((f.kind(), topic, f.payload_bytes()))
    rest = iter(wanted)
    for message in one.messages:
        assert message in rest, (message, wanted)


def _is_frames(said: bytes) -> None:
    """What the session says are frames, each of which answers something."""
    f = Frame(bytearray(said), 1000)
    at = 0
    while at < len(said):
        at = frames_hub.decode_frame(f, at, len(said))
        assert at > 0, said
        assert f.kind() in (spec.ACK, spec.PUBREC, spec.PUBREL, spec.PUBCOMP)


def again(one: Watched) -> None:
    """Whatever came, the session connects again, and takes a message."""
    one.end.lost()
    assert one._large is None, "a message is left open"
    one.options = 0
    one.end.auto_ack = True
    one.messages = []
    one.online()
    buf = bytearray(100)
    n = frames.encode_frame(buf, 0, 100, 0x32, AUTH_ID, (b"t", (), b"behind"))
    assert one.feed(bytes(buf[:n]), [3]) == 0
    assert one.messages == [(spec.PUBLISH, b"t", b"behind")]
    assert one.out.endswith(b"\xe0" + AUTH_ID + b"\x00")
