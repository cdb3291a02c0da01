"""Targets: what a session makes of arbitrary bytes in arbitrary pieces.

An input is a byte of options (bits, from the lowest: no sink; acknowledged by the application; fed before the
handshake; handlers raise), a byte that chooses the receive buffer and the pieces, and the stream.
"""

from typing import Any

from headwater.connection import CLOSING, ERROR, ONLINE
from headwater.streaming import stream_to
from tests.fuzz.ends import KINDS, SMALLEST_RX, Expected, Footprint, Kind, Watched, answers, begin

NO_SINK, APPLICATION_ACKS, BEFORE_HANDSHAKE, RAISING = 1, 2, 4, 8
RX_SIZES = (SMALLEST_RX, 64, 100, 512)
PIECES = ([1000000], [7], [1, 30], [3, 2, 61, 5])


def session(kind: Kind, data: bytes) -> None:
    """The stream byte by byte and in pieces: the same outcome, and the one that the reference finds."""
    if len(data) < 2:
        return
    options, shape, stream = data[0], data[1], data[2:]
    rx = RX_SIZES[shape & 3]
    online = not options & BEFORE_HANDSHAKE
    auto_ack = not options & APPLICATION_ACKS
    raises = bool(options & RAISING)
    sessions = []
    for pieces in ([1], PIECES[shape >> 2 & 3]):
        one = Watched(kind, rx, sink=not options & NO_SINK, online=online, auto_ack=auto_ack, raises=raises)
        footprint = Footprint(one.end)
        one.feed(stream, pieces)
        footprint.check()
        assert not one.messages or one.end.state in (ONLINE, CLOSING, ERROR)
        sessions.append(one)
    single, other = sessions
    # At 5.0 what breaks the receive maximum is found once for all that one read brought.
    if auto_ack or kind.level < 5:
        assert other.outcome() == single.outcome()
        # What breaks a connection may come in one piece with what was to be answered, which is then not answered.
        if not single.end.status:
            assert other.out == single.out
    for one in sessions:
        if online:
            _is_expected(one, stream, options)
    again(other, stream)


def _is_expected(one: Watched, stream: bytes, options: int) -> None:
    want = Expected(
        one.kind,
        stream,
        one.end.rx.capacity,
        sink=not options & NO_SINK,
        auto_ack=not options & APPLICATION_ACKS,
        raises=bool(options & RAISING),
    )
    got = answers(one.out, one.kind.level)
    _begins(want.messages, one.messages)
    _begins(want.answers, got)
    if one.end.state == ONLINE:
        assert one.messages == want.messages
        assert got == want.answers


def _begins(whole: list[Any], part: list[Any]) -> None:
    assert whole[: len(part)] == part, (whole, part)


def again(one: Watched, stream: bytes) -> None:
    """Whatever came, the session connects again, and then it is online."""
    end = one.end
    footprint = Footprint(end)
    end.lost()
    assert not one._large, "a message is left open"
    stream_to(end, None)
    end.on_message = None
    if end.acks is not None:
        end.acks.automatic = True
    begin(one.kind, end)
    assert end.rx.start == end.rx.end and end.status == 0
    assert one.feed(one.kind.hello, [1000]) == 0
    assert end.state == ONLINE
    one.feed(stream, [len(stream) + 1])
    assert end.state in (ONLINE, CLOSING, ERROR)
    footprint.check()


def target(name: str) -> Any:
    """The target for one line of ``KINDS``."""
    kind = KINDS[name]
    return lambda data: session(kind, data)
