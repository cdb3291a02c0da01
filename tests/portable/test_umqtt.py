# heap: 1M
"""The clients with umqtt's face, over lines that break: what they raise, and what becomes of the messages."""

from kept import Clock, Site

from headwater.compat.umqtt import MQTTClient, MQTTException, RobustMQTTClient
from headwater.wire import TICKS_MASK


class Pair:
    """A client of a class, and the site it talks to; ``got`` is what the callback was called with."""

    def __init__(self, kind: "type[MQTTClient]" = MQTTClient, **options: object):
        self.site = Site(Clock())
        self.asked: list[object] = []
        before = MQTTClient.dialer
        MQTTClient.dialer = staticmethod(self.dial)  # type: ignore[assignment,method-assign]  # for this one
        self.client = kind("c", "server", **options)  # type: ignore[arg-type]
        MQTTClient.dialer = staticmethod(before)  # type: ignore[method-assign]
        self.got: list[tuple[bytes, bytes]] = []
        self.client.set_callback(lambda topic, msg: self.got.append((topic, msg)))

    def dial(self, server: str, port: int, ssl: object, params: "dict[str, object]") -> Site:
        self.asked = [server, port, ssl, params]
        return self.site

    def send(self, payload: bytes, qos: int = 0) -> None:
        assert self.site.server.publish(b"t", payload, qos) >= 0
        self.site.serve()


def busy() -> Pair:
    """A server that has many messages in flight."""
    p = Pair()
    p.site.options = {"outbox_size": 20000, "slots": 100, "window": 100}
    p.site.forget()
    return p


def raised(call: object, *arguments: object) -> "tuple[str, int]":
    """What a call raises: the kind, and the number."""
    try:
        call(*arguments)  # type: ignore[operator]
    except OSError as e:
        return "OSError", e.args[0]
    except MQTTException as e:
        return "MQTTException", e.args[0]
    return "nothing", 0


def test_who_connects_must_be_known() -> None:
    said = ""
    try:
        MQTTClient("c", "server")
    except RuntimeError as e:
        said = str(e)
    assert "headwater_board.umqtt" in said


def test_ports_and_tls_are_the_dialers_affair() -> None:
    assert Pair().asked == ["server", 1883, None, {}]
    assert Pair(ssl=True, ssl_params={"cadata": b"x"}).asked == ["server", 8883, True, {"cadata": b"x"}]
    assert Pair(port=5, ssl=True).asked[1] == 5


def test_one_message_for_each_wait_and_all_for_a_check() -> None:
    p = Pair()
    assert p.client.connect() == 0
    for n in range(4):
        p.send(bytes([n]), n % 3)
    for n in range(2):
        assert p.client.wait_msg() == 0x30 | n << 1
        assert len(p.got) == n + 1
    assert p.client.check_msg() == 0x30 and len(p.got) == 4
    assert p.client.check_msg() is None
    p.site.serve()
    assert p.site.server.outbox.count == 0 or p.client.check_msg() is None


def test_it_is_acknowledged_when_the_callback_has_returned() -> None:
    for qos in (0, 1, 2):
        p = Pair()
        p.client.connect(False)
        calls: list[bytes] = []

        def angry(topic: bytes, msg: bytes, calls: "list[bytes]" = calls) -> None:
            calls.append(msg)
            if len(calls) == 1:
                raise ValueError("no")

        p.client.set_callback(angry)
        p.send(b"x", qos)
        try:
            p.client.wait_msg()
            raise AssertionError("not raised")
        except ValueError:
            pass
        # An acknowledgement, if there were one, would leave now.
        p.client.check_msg()
        p.site.serve()
        assert p.client.connect(False) == 1
        p.site.serve()
        p.client.check_msg()
        p.site.serve()
        p.client.check_msg()
        p.site.serve()
        # At QoS 1 it comes again; at QoS 2 exactly once means once.
        assert calls == [b"x"] * (2 if qos == 1 else 1), (qos, calls)
        assert p.site.server.outbox.count == 0


def test_publishing_from_within_the_callback() -> None:
    p = Pair()
    p.client.connect()

    def echo(topic: bytes, msg: bytes) -> None:
        p.got.append((topic, msg))
        p.client.publish(b"echo", msg, False, 1)

    p.client.set_callback(echo)
    for n in range(10):
        p.send(bytes([n]), 1)
    for _ in range(10):
        p.client.wait_msg()
    assert p.site.got == [bytes([n]) for n in range(10)] == [msg for _, msg in p.got]


def test_a_callback_that_waits_behind_a_burst() -> None:
    """What is published in it is acknowledged, whatever lies in front of the acknowledgement; the inbox is bounded."""
    for qos in (0, 1):
        p = busy()
        p.client.queue = 5
        p.client.connect()
        most = [0]

        def echo(topic: bytes, msg: bytes, p: Pair = p, most: "list[int]" = most) -> None:
            p.got.append((topic, msg))
            if msg == b"first":
                p.client.publish(b"echo", msg, False, 1)
                most[0] = len(p.client._inbox)

        p.client.set_callback(echo)
        p.send(b"first", qos)
        for n in range(60):
            p.send(b"%04d" % n + bytes(100), qos)
        while p.client.check_msg() is not None or p.site.server.outbox.count:
            p.site.wait(1)
        assert p.site.got == [b"first"]
        assert len(p.got) == 61 - p.client.dropped and most[0] <= (5 if qos == 0 else 60)
        if qos:
            assert [msg[:4] for _, msg in p.got[1:]] == [b"%04d" % n for n in range(60)]
        else:
            assert p.client.dropped > 0


def test_a_callback_that_waits_behind_more_than_is_held() -> None:
    """It gets its answer. What was not taken at QoS 1 comes on the next connection."""
    p = busy()
    p.client.queue = p.client.unacknowledged = 2
    p.client.connect(False)
    count = [0]

    def busy_callback(topic: bytes, msg: bytes) -> None:
        p.got.append((topic, msg))
        if len(p.got) == 1:
            p.client.subscribe(b"other")
            p.client.publish(b"echo", b"", False, 1)
            count[0] = len(p.client._inbox)

    p.client.set_callback(busy_callback)
    for n in range(12):
        p.send(bytes([n]) + bytes(100), 1)
    assert p.client.wait_msg() == 0x32
    # As many as may wait, and what came with one read.
    assert p.site.got == [b""] and p.site.filters == [(b"other", 0)] and 4 <= count[0] < 9
    outcome = ("nothing", 0)
    while outcome[0] == "nothing":
        p.site.serve()
        outcome = raised(p.client.check_msg)
    assert outcome == ("OSError", 105)
    assert len(p.got) == count[0] + 1
    assert p.client.connect(False) == 1
    p.site.serve()
    while p.client.check_msg() is not None or p.site.server.outbox.count:
        p.site.serve()
    assert [msg[0] for _, msg in p.got] == list(range(12))


def test_a_callback_that_waits_behind_more_at_qos_2_than_there_are_places_for() -> None:
    p = busy()
    p.client.connect(False)

    def busy_callback(topic: bytes, msg: bytes) -> None:
        p.got.append((topic, msg))
        if len(p.got) == 1:
            p.client.publish(b"echo", b"", False, 1)

    p.client.set_callback(busy_callback)
    for n in range(60):
        p.send(bytes([n]) + bytes(100), 2)
    assert p.client.wait_msg() == 0x34
    assert p.site.got == [b""]
    connections = 1
    while p.site.server.outbox.count:
        outcome = raised(p.client.check_msg)
        if outcome[0] != "nothing":
            assert outcome == ("OSError", 105)
            assert p.client.connect(False) == 1
            connections += 1
        p.site.serve()
    assert [msg[0] for _, msg in p.got] == list(range(60))
    assert 1 < connections <= 60


def test_a_large_message_and_one_that_is_too_large() -> None:
    p = Pair()
    p.client.connect()
    for size, qos in ((600, 0), (2000, 1), (1500, 2)):
        p.send(bytes(size), qos)
        assert p.client.wait_msg() == 0x30 | qos << 1
    assert [len(msg) for _, msg in p.got] == [600, 2000, 1500]
    assert raised(p.client.publish, b"t", bytes(3000)) == ("MQTTException", -23)
    assert raised(p.client.publish, b"t", bytes(3000), False, 1) == ("MQTTException", -23)
    p.client.publish("t", "text", False, 2)
    assert p.site.got == [b"text"]


def test_nothing_waits_for_ever() -> None:
    p = Pair(keepalive=4)
    p.client.connect(True, 2)
    p.site.deaf = True
    begin = p.site.clock.now
    for call, arguments in (
        (p.client.publish, (b"t", b"x", False, 1)),
        (p.client.subscribe, (b"t",)),
        (p.client.unsubscribe, (b"t",)),
        (p.client.wait_msg, ()),
    ):
        assert raised(call, *arguments) == ("OSError", 110), call
    assert p.site.clock.now - begin < 20000
    assert p.client.sock is None
    # Over: at once.
    begin = p.site.clock.now
    for call in (p.client.wait_msg, p.client.check_msg, p.client.ping):
        assert raised(call)[0] == "OSError"
    assert p.site.clock.now == begin


def test_a_ping_is_answered_or_not() -> None:
    p = Pair()
    p.client.connect(True, 2)
    p.client.ping()
    assert p.client.wait_msg() is None
    p.client.ping()
    p.send(b"x")
    assert p.client.wait_msg() == 0x30 and p.client.wait_msg() is None
    p.site.deaf = True
    p.client.ping()
    assert raised(p.client.wait_msg) == ("OSError", 110)


def test_a_ping_when_the_clock_wraps() -> None:
    """The ping left before, and what came after it came behind the wrap."""
    p = Pair(keepalive=60)
    p.client.connect(True, 2)
    p.site.clock.now = TICKS_MASK - 500
    p.client.check_msg()
    p.site.deaf = True
    p.client.ping()
    for _ in range(6):
        # Something else comes every second, so that the connection lives.
        p.site.wait(1000)
        p.site.line().down.log += b"\x30\x03\x00\x01t"
        assert p.client.check_msg() == 0x30
    p.site.wait(1999)
    assert p.client.check_msg() is None
    p.site.wait(1)
    assert raised(p.client.check_msg) == ("OSError", 110)


def test_refused() -> None:
    p = Pair()
    p.site.code = 4
    assert raised(p.client.connect) == ("MQTTException", 4)
    p.site.code = 0
    p.site.granted = 0x80
    p.client.connect()
    assert raised(p.client.subscribe, b"t") == ("MQTTException", 0x80)


def test_wrong_arguments() -> None:
    p = Pair()
    p.client.connect()
    assert raised(p.client.publish, b"a/#", b"") == ("MQTTException", -1)
    assert raised(p.client.publish, b"t", b"", False, 3) == ("MQTTException", -3)
    assert raised(p.client.subscribe, b"a+") == ("MQTTException", -2)
    assert raised(p.client.set_last_will, b"", b"") == ("MQTTException", -1)
    assert p.client.check_msg() is None


def test_robust_publishes_once_over_as_many_connections_as_it_takes() -> None:
    p = Pair(RobustMQTTClient)
    said: list[bool] = []
    p.client.log = lambda in_reconnect, e: said.append(in_reconnect)  # type: ignore[attr-defined]
    p.client.connect(False)
    for qos in range(3):
        p.site.cut()
        p.site.away = OSError(111)

        def back(i: int, p: Pair = p) -> None:
            if i == 2:
                p.site.away = None

        p.client.delay = back  # type: ignore[attr-defined]
        p.client.publish(b"t", bytes([qos]), False, qos)
        p.site.serve()
        assert said == [False, True, True], said
        said.clear()
    assert p.site.got == [b"\x00", b"\x01", b"\x02"]


def test_robust_subscribes_again_where_the_session_was_lost() -> None:
    p = Pair(RobustMQTTClient)
    p.client.connect(False)
    p.client.subscribe(b"a", 1)
    p.client.subscribe(b"b", 0)
    p.client.unsubscribe(b"b")
    p.site.cut()
    assert p.client.check_msg() is None
    assert p.site.filters == [(b"a", 1), (b"b", 0)]
    p.site.forget()
    assert p.client.check_msg() is None
    assert p.site.filters[2:] == [(b"a", 1)]


def test_robust_waits() -> None:
    p = Pair(RobustMQTTClient)
    p.client.connect(False)
    begin = p.site.clock.now
    p.client.DELAY = 3  # type: ignore[attr-defined]
    p.client.delay(1)  # type: ignore[attr-defined]
    assert p.site.clock.now - begin == 3000
