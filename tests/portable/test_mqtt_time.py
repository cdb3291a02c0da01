# heap: 2M
"""Keep-alive and time-outs, also where the milliseconds wrap (2**30)."""

from pipe import Ends, drain, feed, packets

from headwater import errors
from headwater.connection import ERROR
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession
from headwater.wire import TICKS_MASK


def timed(start: int, keep_alive: int = 10, response_ms: int = 4000) -> Ends:
    e = Ends(ClientSession(b"c", keep_alive, response_ms=response_ms), ServerSession(response_ms=response_ms))
    e.now = start
    e.connect()
    return e


#: From zero, and from just before the ticks wrap.
STARTS = (0, 5, TICKS_MASK - 20000, TICKS_MASK - 9000, TICKS_MASK - 7499, TICKS_MASK - 3)


def test_pingreq_when_nothing_was_sent() -> None:
    for start in STARTS:
        e = timed(start)
        for step in (7499, 1):
            before = len(e.link().up.log)
            e.now = (e.now + step) & TICKS_MASK
            # The server is not silent, but that is no reason for us to be.
            e.server.now = e.client.now = e.now
            e.from_server.publish(b"t", b"", 0)
            e.run()
            assert e.client.poll(e.now) == 0
            e.run()
            assert bytes(e.link().up.log[before:]) == (b"\xc0\x00" if step == 1 else b""), (start, step)


def test_pingreq_when_nothing_came() -> None:
    """We send all the time; whether anybody is there is asked in every interval."""
    for start in STARTS:
        e = timed(start)
        pings = 0
        for _ in range(60):
            e.now = (e.now + 500) & TICKS_MASK
            assert e.client.poll(e.now) == 0
            assert e.server.poll(e.now) == 0
            e.from_client.publish(b"t", b"", 0)
            e.run()
        pings = len([head for head, _, _ in packets(e.link().up.log) if head == 0xC0])
        assert pings == 4, (start, pings)


def test_no_pingresp_is_a_time_out() -> None:
    for start in STARTS:
        e = timed(start)
        e.now = (start + 7500) & TICKS_MASK
        assert e.client.poll(e.now) == 0
        assert drain(e.client) == b"\xc0\x00"
        assert e.client.poll((e.now + 3999) & TICKS_MASK) == 0
        status = e.client.poll((e.now + 4000) & TICKS_MASK)
        assert status == errors.E_TIMEOUT == e.client.status and e.client.state == ERROR
        assert errors.blame(status) == errors.CONNECTION
        assert e.client.out() == e.client.feed(0) == status


def test_a_ping_that_could_not_leave_is_not_waited_for() -> None:
    """Our own large message is under way, slowly: the time for the answer begins when the ping is gone."""
    e = timed(0)
    c = e.client
    c.publish(b"t", bytes(900), 1)
    n = c.out()
    at = 0
    while at < n - 100:
        # Slow: a hundred bytes a second.
        e.now += 1000
        c.sent(100)
        at += 100
        assert c.poll(e.now) == 0, at
    data = drain(c)
    assert data.endswith(b"\xc0\x00") and len(data) < 110
    assert c.poll(e.now + 1) == 0
    assert c.poll(e.now + 3999) == 0
    assert c.poll(e.now + 4001) == errors.E_TIMEOUT


def test_a_late_pingresp_does_not_stop_the_pings() -> None:
    """The answer is queued behind a large message that comes slowly; the server must hear from us all the same."""
    e = timed(0)
    c = e.client
    begin = b"\x30\x80\x80\x40\x00\x01t"
    c.now = 1
    assert feed(c, begin) == 0
    pings = 0
    for now in range(500, 60000, 500):
        assert c.poll(now) == 0
        assert feed(c, bytes(100)) == 0
        pings += drain(c) == b"\xc0\x00"
    assert pings == 7


def test_the_answer_to_connect_is_waited_for_once() -> None:
    """A byte of it now and then does not hold the connection open."""
    for start in STARTS:
        c = ClientSession(b"c", response_ms=4000)
        assert c.connect(start) == 0
        drain(c)
        for k in range(3):
            now = (start + 1000 * k) & TICKS_MASK
            assert c.poll(now) == 0
            assert feed(c, b"\x20\x82\x80"[k : k + 1]) == 0
        assert c.poll((start + 3999) & TICKS_MASK) == 0
        assert c.poll((start + 4000) & TICKS_MASK) == errors.E_TIMEOUT
        s = ServerSession(response_ms=4000)
        s.listen(start)
        for k in range(4):
            assert s.poll((start + 999 * k) & TICKS_MASK) == 0
            assert feed(s, b"\x10\x0c\x00\x04"[k : k + 1]) == 0
        assert s.poll((start + 3999) & TICKS_MASK) == 0
        assert s.poll((start + 4000) & TICKS_MASK) == errors.E_TIMEOUT


def test_a_transport_that_takes_nothing_is_a_time_out() -> None:
    for start in STARTS:
        e = timed(start)
        c = e.client
        c.publish(b"t", b"", 0)
        assert c.poll((start + 100) & TICKS_MASK) == 0
        assert c.poll((start + 4099) & TICKS_MASK) == 0
        assert c.out() > 2
        # It takes a byte: its time begins again.
        c.sent(1)
        assert c.poll((start + 4200) & TICKS_MASK) == 0
        assert c.poll((start + 8199) & TICKS_MASK) == 0
        assert c.poll((start + 8200) & TICKS_MASK) == errors.E_TIMEOUT


def test_a_server_waits_one_and_a_half_keep_alives() -> None:
    for start in STARTS:
        e = timed(start)
        assert e.server.poll((start + 14999) & TICKS_MASK) == 0
        assert e.server.poll((start + 15000) & TICKS_MASK) == errors.E_TIMEOUT
        e = timed(start, keep_alive=0)
        assert e.server.poll((start + (1 << 29)) & TICKS_MASK) == 0
        assert e.client.poll((start + (1 << 29)) & TICKS_MASK) == 0
        assert e.client.out() == 0
