"""Targets: the serial link's frames against the reference, and a link with whatever comes over its line.

Frames: a byte that chooses how the line is cut up, then the line. Session: a script; see ``link_session``.
"""

from headwater.link.frames import (
    DAMAGED,
    FOREIGN,
    INIT,
    OK,
    PAYLOAD,
    SPECIALS,
    TRAILER,
    Unstuffer,
    check_frame,
    crc16,
    stuff,
    stuffed_size,
)
from headwater.link.link import CLOSING, ENDED, IDLE, UP, Link
from tests.fuzz import link_reference as reference
from tests.fuzz.script import Script

CAPACITY = PAYLOAD + TRAILER


def sound(link: Link) -> None:
    """What holds of a link whatever came in."""
    for channel in link.channels:
        sender = channel.sender
        assert IDLE <= channel.state <= ENDED
        assert 0 <= sender._sent <= sender.queued <= sender.window
        assert 0 <= sender.flight <= sender.queued
        assert 0 <= channel._ring.any() <= channel._capacity
        assert 0 < channel.session <= 0xFFFF
        for i in range(sender.window):
            assert sender.end[i] <= (i + 1) * sender.slot - (stuffed_size(TRAILER) + 1)
    assert 0 <= link.out_at <= link.out_end <= len(link.out_buf)


def frames(data: bytes) -> None:
    """A line comes apart into frames, in whatever pieces, and each is judged, as by the reference."""
    cut, line = data[0] if data else 0, data[1:]
    rx = Unstuffer(CAPACITY)
    found: list[bytes | None] = []
    step = cut or len(line) + 1
    for begin in range(0, len(line), step):
        at, end = begin, min(begin + step, len(line))
        while at < end:
            before = at
            at = rx.take(line, at, end)
            assert before < at <= end
            if rx.size:
                found.append(bytes(rx.buf[: rx.size]) if rx.size > 0 else None)
    assert len(rx.buf) == CAPACITY
    expected: list[bytes | None] = []
    for part in line.split(b"\0")[:-1]:
        if part:
            body = reference.unstuff(part)
            expected.append(body if body is not None and len(body) <= CAPACITY else None)
    assert found == expected

    for body in (line[:CAPACITY], *(one for one in found if one)):
        frame = reference.parse(body)
        got = check_frame(body, len(body))
        assert (got == DAMAGED) == (frame is None)
        if frame is not None:
            assert got == (OK if frame.version == 1 and frame.kind <= 6 else FOREIGN)
            assert reference.pack(frame) == body

    out = bytearray(stuffed_size(len(line)) + 1)
    n = stuff(line, 0, len(line), out, 0)
    assert out[:n] == reference.stuff(line) and not set(out[:n]) & set(SPECIALS[1:])
    assert n <= stuffed_size(len(line))
    assert crc16(line, 0, len(line), INIT) == reference.crc(line)


def _hostile(link: Link, script: Script) -> bytes:
    """A frame for the state that the link is in: right in some fields, and in the others what the script says."""
    channel = link.channels[script.below(len(link.channels))]
    keys = (channel._key_in, channel._key_out, channel.session, channel.peer, script.word())
    seqs = (channel._expected, channel._expected + 1, script.byte())
    acks = (channel.sender.una, channel.sender.una + 1, script.byte())
    named = channel.session.to_bytes(2, "big") + b"\xf0"
    choice = script.byte()
    return reference.encode(
        reference.Frame(
            kind=script.below(8),
            channel=channel.number if choice & 1 else script.below(8),
            seq=seqs[script.below(3)] & 0xFF,
            ack=acks[script.below(3)] & 0xFF,
            credit=script.byte(),
            key=keys[script.below(5)] & 0xFFFF,
            payload=named if choice & 2 else script.take(script.below(PAYLOAD + 1)),
            version=1 if choice & 4 else script.below(4),
        )
    )


def _sizes(link: Link) -> list[int]:
    """What the link is made of."""
    found = [len(link._in.buf), len(link.trailer), len(link.names), len(link.control), len(link.scratch)]
    for channel in link.channels:
        sender = channel.sender
        found += [
            len(channel._ring._buf),
            len(sender.store),
            len(sender.end),
            len(sender.crc),
            len(vars(channel)),
        ]
    return found


def link_session(data: bytes) -> None:
    """A link whose peer, clock and user do what the script says: it stays sound, small, and in motion."""
    script = Script(data)
    link = Link(1 + script.below(0xFFFF), 1 + script.below(3), 1 + script.below(9), 1 + script.below(PAYLOAD))
    before = _sizes(link)
    buf = bytearray(100)
    now = 0
    for channel in link.channels:
        channel.open()
    while script.more():
        step = script.below(8)
        channel = link.channels[script.below(len(link.channels))]
        if step <= 1:
            line = _hostile(link, script)
            link.feed(line, 0, len(line), now)
        elif step == 2:
            line = script.take(script.byte())
            link.feed(line, 0, len(line), now)
        elif step == 3:
            now = now + script.word() & 0x3FFFFFFF
            link.poll(now)
            assert 0 <= link.due() <= link.keep_ms
        elif step == 4 and channel.state == UP:
            channel.write(bytes(500), 0, script.below(500))
        elif step == 5 and channel.state not in (IDLE, CLOSING):
            channel.readinto(buf, 1 + script.below(100))
        elif step == 6:
            (channel.open, channel.close)[script.below(2)]()
        elif step == 7:
            link.lost()
        for _ in range(script.below(4)):
            whole = link.out_at == link.out_end
            n = link.out()
            if n:
                line = bytes(link.out_buf[link.out_at : link.out_at + n])
                _is_ours(line, whole)
                link.sent(1 + script.below(n))
        sound(link)
    assert _sizes(link) == before, "it grows"
    # It says no more than it has to say: without time or input it comes to rest.
    for _ in range(100 * len(link.channels)):
        n = link.out()
        if not n:
            break
        link.sent(n)
    else:
        raise AssertionError("it goes on and on")


def _is_ours(line: bytes, whole: bool) -> None:
    """What goes out is a frame, of which the beginning may have gone already."""
    assert line.endswith(b"\0") and not set(line[1:-1]) & set(SPECIALS[1:])
    if whole:
        body = reference.unstuff(line.strip(b"\0"))
        assert body is not None and reference.parse(body) is not None


def link_pair(data: bytes) -> None:
    """Two links over a line that drops, doubles and holds back what the script says: streams stay as they were."""
    script = Script(data)
    ends = [Link(7 + i, 1, 1 + script.below(5), 1 + script.below(40)) for i in range(2)]
    written = [b"", b""]
    read = [b"", b""]
    lines: list[list[bytes]] = [[], []]
    buf = bytearray(64)
    now = 0
    for link in ends:
        link.channels[0].open()
    while script.more():
        step = script.byte()
        who = step & 1
        link, channel = ends[who], ends[who].channels[0]
        action = step >> 1 & 7
        if action == 0 and channel.state == UP:
            payload = script.take(script.below(64))
            written[who] += payload[: channel.write(payload, 0, len(payload)) or 0]
        elif action == 1 and channel.state == UP:
            n = channel.readinto(buf, 1 + script.below(64)) or 0
            read[who] += buf[:n]
        elif action == 2:
            now += script.byte()
            for one in ends:
                one.poll(now)
        elif action == 3:
            n = link.out()
            if n:
                lines[who].append(bytes(link.out_buf[link.out_at : link.out_at + n]))
                link.sent(n)
        elif action == 4 and lines[who]:
            lines[who].pop(0)
        elif action == 5 and lines[who]:
            lines[who].insert(0, lines[who][0])
        elif lines[who]:
            piece = lines[who].pop(0)
            other = ends[1 - who]
            other.feed(piece, 0, len(piece), now)
        for one, was, got in zip(ends, reversed(written), read, strict=True):
            sound(one)
            assert was.startswith(got), "it reads what was not written"
            assert one.channels[0].streams <= 1 or now >= one.dead_ms
