# heap: 1M
"""FMQ's session at the client's end, against a scripted hub: how connections begin and end."""

from fmq_hub import PROCESS, TIME, Pair, pair, small

from headwater import errors
from headwater.connection import CLOSING, ERROR, IDLE, ONLINE
from headwater.errors import (
    E_ARGUMENT,
    E_DISCONNECTED,
    E_OFFLINE,
    E_QOS,
    E_REFUSED,
    E_TIMEOUT,
    E_TOO_LARGE,
    E_TOPIC,
    E_UNEXPECTED,
)
from headwater.fmq import spec
from headwater.fmq.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# -- AUTH --------------------------------------------------------------------------------------------------------------


def test_auth_says_who_we_are_and_what_our_will_is() -> None:
    client = ClientSession(b"c", 30, False, b"user", b"secret")
    assert client.set_will(b"gone", b"away", 1, True) == 0
    p = Pair(client)
    p.connect()
    assert p.hub.auth == (b"c", b"user", b"secret", 30, False, b"gone", 1, True)
    assert client.set_will(None) == 0
    p.lose()
    p.connect()
    assert len(p.hub.auth) == 5


def test_who_is_nobody_says_nothing() -> None:
    p = Pair(ClientSession(keep_alive=0))
    p.connect()
    assert p.hub.auth == ()


def test_a_will_is_checked() -> None:
    client = ClientSession()
    assert client.set_will(b"a/#") == E_TOPIC
    assert client.set_will(b"a", b"", 3) == E_QOS
    assert client.set_will("text") == E_ARGUMENT  # type: ignore[arg-type]
    client.set_will(b"a", b"x" * 600)
    assert client.connect(0) == E_TOO_LARGE
    assert client.state == IDLE


def test_the_hub_gives_process_number_and_time() -> None:
    p = pair()
    assert p.client.process == bytes([PROCESS])
    assert p.client.publish(b"t", b"x", 1) == 1
    p.run()
    (ident,) = p.hub.ids
    # PUBLISH and one byte of process number; thread 0; the hub's time.
    assert ident[:3] == b"\x31\x05\x00" and ident[3] == 0xB0
    assert int.from_bytes(ident[4:], "little") > 1795000000000000000


def test_a_session_is_present_when_the_hub_has_kept_it() -> None:
    p = pair()
    assert p.at.online == [False] and not p.client.session_present
    p.lose()
    p.connect()
    assert p.at.online == [False, True] and p.client.session_present


def test_a_refused_auth_says_why() -> None:
    p = Pair(small())
    p.hub.refuse = (spec.AUTH, 0x9D, b"10.0.0.7:7443")
    p.open()
    assert p.run() == E_REFUSED
    assert (p.client.return_code, p.client.reason(), p.client.state) == (0x9D, b"10.0.0.7:7443", ERROR)
    assert p.client.poll(1) == p.client.feed(0) == E_REFUSED
    p.hub.refuse = None
    p.lose()
    p.connect()
    assert p.client.return_code == 0


def answered_auth(*values: "Any", **options: "Any") -> Pair:
    """The hub answers AUTH with this."""
    p = Pair(small(**options))
    p.open()
    p.step_up()
    p.hub._out = bytearray()
    p.hub.say(spec.ACK << 4, p.hub.log[-1][2], *values)
    return p


def test_an_answer_to_auth_has_four_values() -> None:
    assert answered_auth(0, 300, False, TIME).run() == 0
    assert answered_auth().run() == errors.E_FIELD
    # A session that was not to be kept.
    client = answered_auth(0, 1, True, TIME)
    client.client.clean_start = True
    assert client.run() == errors.E_CODE
    # A process number that leaves no room for a time.
    assert answered_auth(0, b"\x68\x01\x09" + b"\x01" * 9, False, TIME).run() == spec.E_FORM
    p = answered_auth(0, 0, False, TIME)
    assert p.run() == 0 and p.client.process == b""
    assert p.client.publish(b"t", b"x", 1) == E_OFFLINE


def test_nothing_but_the_answer_to_auth_may_come_first() -> None:
    p = Pair(small())
    p.open()
    p.hub.say(spec.PUBLISH << 4, p.hub.ident(), b"t", (), b"x")
    assert p.run() == E_UNEXPECTED
    assert p.at.got == []
    p = Pair(small())
    p.open()
    p.hub.say(spec.ACK << 4, p.hub.ident(spec.PINGREQ))
    assert p.run() == E_UNEXPECTED


def test_the_hub_may_end_the_connection() -> None:
    p = pair()
    p.hub.say(spec.ACK << 4, p.hub.log[0][2], 0x8B, b"going down")
    assert p.run() == E_DISCONNECTED
    assert (p.client.return_code, p.client.reason()) == (0x8B, b"going down")


def test_disconnect_answers_auth() -> None:
    p = pair()
    assert p.client.disconnect() == 0 and p.client.disconnect() == 0
    assert p.client.state == CLOSING
    p.hub.publish(b"t", b"late")
    p.run()
    assert p.hub.ended and p.at.got == []
    p.client.lost()
    assert p.client.state == IDLE


# -- between hubs ------------------------------------------------------------------------------------------------------


def test_frames_of_elections_and_slaves() -> None:
    p = pair()
    address = b"\x44\x01\x00\x00\x7f\x5b\x07"
    numbers = [
        p.client.request(spec.ELECT << 4, (address, 17)),
        p.client.request(spec.SLAVEOF << 4, (address, address)),
        p.client.request(spec.SLAVEOF << 4 | spec.REG, ()),
    ]
    slaves = []

    def answer(n: int, code: int) -> None:
        p.at.answers.append((n, code, b""))
        f = p.client.frame
        if f.asked() == spec.SLAVEOF and f.count == 2:
            slaves.append(bytes(f.buf[f.at[1] : f.end]))

    p.client.on_answer = answer
    p.run()
    assert p.at.answers == [(n, 0, b"") for n in numbers]
    assert slaves == [address]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_is_wrong_ends_the_connection_with_a_reason() -> None:
    ident = b"\x31\x07\x00\xb0\x15\xcd\x4e\x2b\x84\x5b\xd7\x18"
    for data, status, code in (
        (b"\x40", errors.E_TYPE, 0),
        (b"\x36" + ident + b"\x00", errors.E_RX_QOS, 0x81),
        (b"\xe1" + ident + b"\x00", errors.E_FLAGS, 0x81),
        (b"\x30" + ident + b"\x02\x11\x05", errors.E_FIELD, 0x81),
        (b"\x30" + ident + b"\x05\x11\x01\xff\xd0x", errors.E_UTF8, 0x81),
        (b"\x30\xff\xff\xff", spec.E_ID, 0),
        (b"\x80" + ident + b"\x03\x11\x01t", E_UNEXPECTED, 0x82),
        (b"\x00" + ident + b"\x00", E_UNEXPECTED, 0x82),
    ):
        p = pair()
        p.hub._out += data
        assert p.run() == status, data
        assert p.client.status == status and p.client.state == ERROR
        assert p.hub.refused == ([(ident, code)] if code else []), data
        p.lose()
        p.connect()


def test_the_last_word_does_not_stand_in_a_frame() -> None:
    p = pair()
    p.client.publish(b"t", b"half of it")
    assert p.client.out() > 0
    p.client.sent(3)
    p.hub._out += b"\xe1" + p.hub.ident() + b"\x00"
    p.step_down()
    assert p.client.out() == p.client.status == errors.E_FLAGS


# -- time --------------------------------------------------------------------------------------------------------------


def test_keep_alive() -> None:
    """40 seconds of silence: a ping every 7.5 of them."""
    p = pair()
    for _ in range(80):
        p.now += 500
        assert p.client.poll(p.now) == 0
        assert p.run() == 0
    assert [kind for kind, _, _ in p.hub.log] == [spec.AUTH] + [spec.PINGREQ] * 5
    assert not p.client.pinged


def test_a_hub_that_does_not_answer() -> None:
    p = Pair(small())
    p.open()
    p.step_up()
    assert p.client.poll(9999) == 0
    assert p.client.poll(10000) == E_TIMEOUT
    p = pair()
    assert p.client.poll(7500) == 0
    p.step_up()
    assert p.client.poll(7501) == 0
    # The silence of 10 seconds, and those since the ping left.
    assert p.client.poll(17499) == 0
    p.step_up()
    assert p.client.poll(17501) == E_TIMEOUT
    assert p.client.out() == E_TIMEOUT
    p = pair()
    assert p.client.publish(b"t", b"x") == 0
    assert p.client.out() > 0
    assert p.client.poll(5) == 0 and p.client.poll(10004) == 0
    assert p.client.poll(10005) == E_TIMEOUT
    assert p.client.state == ERROR != ONLINE
