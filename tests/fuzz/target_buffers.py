"""Targets: the receive buffer and the outbox, of a board and of a computer, driven by a script against a model.

Receive buffer: how large, then reads, and how large the packets are. Outbox: how large, then messages that come and
are acknowledged.
"""

from collections import deque

from headwater.connection import AT1, AT2, DONE, REL, RamOutbox, RxBuf
from headwater_host.client.outbox import GrowingOutbox
from headwater_host.client.rxbuf import GrowingRxBuf
from tests.fuzz.script import Script


class _Moves(RxBuf):
    """Counts the bytes it moves."""

    moved = 0

    def _move(self, start: int, to: int, n: int) -> None:
        self.moved += n
        super()._move(start, to, n)


def _stream(start: int, n: int) -> bytes:
    return bytes([(start + k) % 251 for k in range(n)])


def _play(rx: RxBuf, script: Script) -> tuple[int, bool]:
    """Read, and take packets as soon as they are whole, unless the script says that they wait: how much came, and
    whether any waited."""
    came = went = 0
    waited = False
    buf = rx.buf
    packet = 1 + script.word() % rx.capacity
    while script.more():
        room = rx.window()
        assert room == rx.room
        if came - went < rx.capacity:
            assert room > 0, "no room, and no whole packet"
        data = _stream(came, min(room, script.byte()))
        assert len(rx.view) >= len(data)
        rx.view[: len(data)] = data
        came += len(data)
        # As ``Endpoint.feed`` does.
        if data and rx.gap:
            rx.join(len(data))
        rx.end += len(data)
        assert 0 <= rx.start <= rx.end <= rx.size and rx.buf is buf
        assert rx.buf[rx.start : rx.end] == _stream(went, came - went)
        step = script.byte()
        while came - went >= packet and step & 7 != 7:
            rx.start += packet
            went += packet
            packet = 1 + script.word() % rx.capacity
        waited = waited or came - went >= packet
        if step == 255:
            rx.clear()
            went = came
    return came, waited


def receive_buffer(data: bytes) -> None:
    """A board's: bytes come out as they went in, it keeps its size, and what it moves is in proportion to them."""
    script = Script(data)
    size = 16 + script.below(400)
    rx = _Moves(size)
    came, waited = _play(rx, script)
    assert len(rx.buf) == size
    assert waited or rx.moved <= 3 * came + size, (rx.moved, came, size)


def growing_receive_buffer(data: bytes) -> None:
    """A computer's: the same, and it is no larger than about twice what has to be held."""
    script = Script(data)
    rx = GrowingRxBuf(16 + script.below(200), 16 + script.below(1000))
    _play(rx, script)
    assert len(rx.buf) == rx.size <= rx.capacity + rx._first_size


class _Entry:
    def __init__(self, i: int, packet: bytes, state: int) -> None:
        self.i = i
        self.packet = packet
        self.state = state


def outbox(data: bytes) -> None:
    """A board's: what was put in stays as it was and in its order until it is acknowledged."""
    script = Script(data)
    _keep(RamOutbox(8 + script.below(300), 1 + script.below(20)), script)


def growing_outbox(data: bytes) -> None:
    """A computer's."""
    script = Script(data)
    _keep(GrowingOutbox(8 + script.below(100), 1 + script.below(20), 8 + script.below(1000)), script)


def _keep(box: RamOutbox, script: Script) -> None:
    kept: deque[_Entry] = deque()
    size, limit = len(box.buf), getattr(box, "limit", len(box.buf))
    number = 0
    while script.more():
        step = script.byte()
        if step & 1:
            n = 1 + script.below(100)
            at = box.reserve(n)
            used = sum(len(one.packet) for one in kept)
            if at < 0:
                # Used bytes lie in one piece, so what is free may be in two.
                assert len(kept) == box.slots or used + n > limit // 2 or n > limit, (used, n, limit)
                continue
            assert used + n <= limit and at == box.reserved
            number += 1
            packet = _stream(number, n)
            box.buf[at : at + n] = packet
            i = box.next
            assert box.commit(n, AT1 if step & 2 else AT2) == i
            kept.append(_Entry(i, packet, box.state[i]))
        elif kept and step & 2:
            one = kept[script.below(len(kept))]
            if one.state == AT2 and step & 4:
                one.state = REL
            elif one.state != DONE:
                one.state = DONE
            else:
                continue
            assert box.set(one.i, one.state) == 0
            while kept and kept[0].state == DONE:
                kept.popleft()
        elif step & 4 and step & 8:
            box.clear()
            kept.clear()
        # What is there, and nothing else.
        assert box.count == len(kept)
        i = box.head
        for one in kept:
            assert (one.i, one.state) == (i, box.state[i])
            assert box.buf[box.at[i] : box.at[i] + box.size[i]] == one.packet
            assert box.find(i + 1) == (i if one.state != DONE else -1)
            i = (i + 1) % box.slots
        assert len(box.state) == box.slots and len(box.buf) <= max(size, limit)
