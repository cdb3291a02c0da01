# heap: 768K
"""What a keeper does for its program: subscriptions, messages while there is no connection, the end."""

from kept import Clock, Kept, PollSite, Site

from headwater import errors
from headwater.mqtt.backlog import Backlog
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import CONNECTING, OFF, ONLINE, PAUSE, Keeper
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_subscriptions_come_back_when_the_session_is_lost() -> None:
    k = Kept()
    assert k.keeper.subscribe(b"a/+", 1) == 0 and k.keeper.subscribe(bytearray(b"b/#"), 2) == 0
    k.online()
    assert k.site.filters == [(b"a/+", 1), (b"b/#", 2)] == k.answers
    k.site.cut()
    k.until(PAUSE)
    k.until(ONLINE)
    k.keeper.wait(100)
    # The server has them still.
    assert len(k.site.filters) == 2
    k.site.forget()
    k.until(PAUSE)
    k.until(ONLINE)
    k.keeper.wait(100)
    assert k.site.filters == [(b"a/+", 1), (b"b/#", 2)] * 2 == k.answers and k.events[-1] is False


def test_subscriptions_are_asked_for_after_a_reset_of_the_board() -> None:
    """The server has kept the session, with who knows what in it."""
    k = Kept().online()
    other = Kept(k.site)
    other.keeper.subscribe(b"new", 1)
    k.keeper.stop()
    other.online()
    assert other.events == [True] and k.site.filters == [(b"new", 1)]


def test_an_answer_that_got_lost_is_asked_for_again() -> None:
    k = Kept().online()
    k.keeper.subscribe(b"a", 1)
    k.keeper.poll()
    k.site.serve()
    k.site.cut()
    k.site.line().read_error = OSError(104)
    k.until(PAUSE)
    k.until(ONLINE)
    k.keeper.wait(100)
    assert k.site.filters == [(b"a", 1)] * 2 and k.answers == [(b"a", 1)]
    k.keeper.unsubscribe(b"a")
    k.keeper.poll()
    k.site.line().read_error = OSError(104)
    k.until(PAUSE)
    k.until(ONLINE)
    k.keeper.wait(100)
    assert k.answers == [(b"a", 1), (b"a", 0)]


def test_more_subscriptions_than_may_be_asked_for_at_once() -> None:
    k = Kept(subscriptions=40)
    filters = [b"filter/%d" % n for n in range(40)]
    for one in filters:
        assert k.keeper.subscribe(one, 1) == 0
    k.online()
    k.keeper.wait(1000)
    assert k.site.filters == [(one, 1) for one in filters] and len(k.answers) == 40
    assert k.keeper.subscribe(b"one more") == errors.E_WINDOW
    assert k.keeper.unsubscribe(b"filter/7") == 0
    assert k.keeper.unsubscribe(b"unknown") == errors.E_UNKNOWN_ID
    k.keeper.wait(100)
    assert k.keeper.subscribe(b"one more") == 0


def test_subscribing_again_changes_the_qos() -> None:
    k = Kept(subscriptions=1)
    k.keeper.subscribe(b"a", 0)
    k.online()
    assert k.keeper.subscribe(b"a", 2) == 0
    k.keeper.wait(100)
    # And before the answer has come.
    assert k.keeper.subscribe(b"a", 1) == 0
    k.keeper.poll()
    assert k.keeper.subscribe(b"a", 0) == 0
    k.keeper.wait(100)
    assert k.site.filters == [(b"a", 0), (b"a", 2), (b"a", 1), (b"a", 0)] and k.answers[-1] == (b"a", 0)
    assert k.keeper._asked == 0


def test_a_subscription_that_is_refused() -> None:
    k = Kept()
    k.site.granted = 0x80
    k.keeper.subscribe(b"secret", 1)
    k.online()
    assert k.answers == [(b"secret", 0x80)]
    # Not asked for again in this session; but in a new one.
    k.site.cut()
    k.until(PAUSE)
    k.until(ONLINE)
    k.keeper.wait(100)
    assert len(k.site.filters) == 1
    k.site.forget()
    k.until(PAUSE)
    k.until(ONLINE)
    k.keeper.wait(100)
    assert len(k.site.filters) == 2


def test_a_filter_that_does_not_fit_does_not_hold_up_the_others() -> None:
    k = Kept()
    k.keeper.subscribe(bytes(600).replace(b"\x00", b"x"))
    k.keeper.subscribe(b"short")
    k.online()
    assert k.answers[0][1] == errors.E_TOO_LARGE and k.answers[1] == (b"short", 0)


def test_bad_subscriptions() -> None:
    k = Kept().keeper
    assert k.subscribe(b"a+") == k.subscribe(b"") == k.subscribe(bytes(70000)) == errors.E_FILTER
    assert k.subscribe(b"a", 3) == errors.E_QOS
    assert k.subscribe("a") == k.subscribe(None) == k.subscribe([97]) == errors.E_ARGUMENT  # type: ignore[arg-type]
    assert k.unsubscribe(b"a") == errors.E_UNKNOWN_ID


def test_a_subscription_that_is_taken_back_while_offline() -> None:
    """Whoever waits for the answer gets one, whether or not the server has kept the session."""
    for forgets in (False, True):
        for asked in (False, True):
            k = Kept(subscriptions=1)
            k.keeper.subscribe(b"a", 1)
            k.online()
            if asked:
                # The question was on its way when the line broke.
                k.keeper.unsubscribe(b"a")
                k.keeper.poll()
            k.site.cut()
            if forgets:
                k.site.forget()
            k.until(PAUSE)
            if not asked:
                assert k.keeper.unsubscribe(b"a") == 0
            k.until(ONLINE)
            k.keeper.wait(100)
            assert k.answers == [(b"a", 1), (b"a", 0)] and len(k.site.filters) == 1
            assert k.keeper.subscribe(b"b") == 0


# -- publishing without a connection -----------------------------------------------------------------------------------


def fill(k: Kept, qos: int = 1) -> int:
    """Publish numbers until the outbox refuses: how many it took."""
    n = 0
    while k.keeper.publish(b"t", bytes([n]), qos) > 0:
        n += 1
    return n


def test_a_full_outbox_refuses() -> None:
    k = Kept()
    assert fill(k) == 16
    assert k.keeper.publish(b"t", b"", 1) == errors.E_WINDOW
    k.online()
    assert k.keeper.flush(1000) == 0 and k.site.got == [bytes([n]) for n in range(16)]


def test_a_full_outbox_blocks_until_there_is_room() -> None:
    k = Kept(block_ms=5000)
    k.keeper.start()
    for n in range(200):
        assert k.keeper.publish(b"t", bytes([n]), n % 3) >= 0, n
    assert k.keeper.flush(1000) == 0 and sorted(k.site.got) == [bytes([n]) for n in range(200)]
    # Or until the time is up.
    k.site.deaf = True
    begin = k.clock.now
    assert fill(k) == 16
    assert 5000 <= k.clock.now - begin < 5040
    k.site.cut()
    k.until(PAUSE)
    k.site.away = OSError(111)
    begin = k.clock.now
    assert k.keeper.publish(b"t", b"", 0) == errors.E_OFFLINE and k.clock.now - begin >= 5000
    # What will never do is refused at once.
    begin = k.clock.now
    assert k.keeper.publish(b"", b"", 1) == errors.E_TOPIC and k.keeper.publish(b"t", b"", 3) == errors.E_QOS
    assert k.clock.now == begin


def test_it_does_not_block_in_a_handler_or_when_nothing_will_come_of_it() -> None:
    k = Kept(block_ms=5000).online()
    answers: list[int] = []

    def handler(m: "Packet") -> None:
        k.site.deaf = True
        while not answers or answers[-1] > 0:
            answers.append(k.keeper.publish(b"t", b"", 1))
        answers.append(k.keeper.flush(1000))

    k.client.on_message = handler
    k.site.server.publish(b"t", b"", 1)
    k.site.wait(1)
    begin = k.clock.now
    k.keeper.poll()
    assert answers[-2:] == [errors.E_WINDOW, errors.E_STATE] and k.clock.now == begin
    k.keeper.stop()
    assert k.keeper.publish(b"t", b"", 1) == errors.E_WINDOW and k.clock.now == begin


def test_the_oldest_are_dropped_and_nothing_else() -> None:
    """What is in flight when the line breaks arrives; so does the newest of what was published since."""
    backlog = Backlog(100, 10)
    k = Kept(backlog=backlog).online()
    k.site.deaf = True
    for n in range(4):
        assert k.keeper.publish(b"t", b"flight %d" % n, 1 + n % 2) > 0
    k.site.cut()
    k.until(PAUSE)
    for n in range(25):
        assert k.keeper.publish(b"t", b"late %d" % n, n % 3, n == 24) == 0
    assert (
        backlog.count < 10
        and backlog.dropped == 25 - backlog.count
        and k.keeper.waiting() == 4 + backlog.count
    )
    kept = backlog.count
    k.site.deaf = False
    k.until(ONLINE)
    assert k.keeper.flush(1000) == 0
    late = [m for m in k.site.got if m.startswith(b"late")]
    assert late == [b"late %d" % n for n in range(25 - kept, 25)]
    assert [m for m in k.site.got if m.startswith(b"flight")] == [b"flight %d" % n for n in range(4)]
    assert k.keeper.publish(b"t", b"direct", 1) > 0


def test_a_backlog_takes_what_the_outbox_does_not() -> None:
    """Everything arrives in order while the newest is waiting for room."""
    k = Kept(backlog=Backlog(2000, 100)).online()
    for n in range(80):
        assert k.keeper.publish(b"t", bytes([n]), 1) >= 0
    assert k.keeper.backlog is not None and k.keeper.backlog.count == 64
    assert k.keeper.flush(5000) == 0
    assert k.site.got == [bytes([n]) for n in range(80)] and k.keeper.backlog.dropped == 0


def test_what_is_new_stays_behind_the_backlog() -> None:
    k = Kept(backlog=Backlog(2000, 100)).online()
    k.site.deaf = True
    for n in range(20):
        assert k.keeper.publish(b"t", bytes([n]), 1) >= 0
    k.site.deaf = False
    # The outbox has room again, and the keeper has not had its turn.
    assert k.client.wait(100) == 0 and k.client.session.outbox.count == 0
    assert k.keeper.publish(b"t", bytes([20]), 1) == 0
    assert k.keeper.flush(1000) == 0 and k.site.got == [bytes([n]) for n in range(21)]


def test_a_backlog_loses_nothing_to_a_line_that_breaks() -> None:
    k = Kept(backlog=Backlog(2000, 100))
    for n in range(6):
        assert k.keeper.publish(b"t", bytes([n]), 0, n == 3) == 0
    retained: list[bool] = []
    k.keeper.start()
    k.until(ONLINE)
    k.site.line().write_error = OSError(32)
    k.until(PAUSE)

    def take(m: "Packet") -> None:
        k.site.got.append(m.payload_bytes())
        retained.append(m.retain())

    k.site.server.on_message = take
    k.until(ONLINE)
    assert k.keeper.flush(1000) == 0 and k.keeper.wait(20) == 0
    assert k.site.got == [bytes([n]) for n in range(6)]
    assert retained == [False, False, False, True, False, False]


def test_a_backlog_against_a_line_that_takes_little() -> None:
    clock = Clock()
    site = Site(clock)
    site.up = (5, 0, 9)
    k = Kept(site, backlog=Backlog(2000, 100))
    for n in range(60):
        assert k.keeper.publish(b"t", bytes([n]) * 9, n % 3) == 0
    k.keeper.start()
    assert k.keeper.flush(100000) == 0
    for qos in range(3):
        assert [m[0] for m in site.got if m[0] % 3 == qos] == list(range(qos, 60, 3))


def test_a_backlog_refuses_what_can_never_be_sent() -> None:
    k = Kept(backlog=Backlog(4000, 4))
    put = k.keeper.publish
    for qos in (0, 1):
        assert put(b"a/#", b"", qos) == put(b"", b"", qos) == put(bytes(70000), b"", qos) == errors.E_TOPIC
        assert put(b"t", "text", qos) == put(None, b"", qos) == errors.E_ARGUMENT  # type: ignore[arg-type]
        assert put(b"t", bytes(1100), qos) == put(b"t", bytes(5000), qos) == errors.E_TOO_LARGE
    assert put(b"t", bytes(600), 0) == errors.E_TOO_LARGE and put(b"t", bytes(600), 1) == 0
    assert put(b"t", b"", 3) == put(b"t", b"", None) == errors.E_QOS  # type: ignore[arg-type]
    assert Kept(backlog=Backlog(50, 4)).keeper.publish(b"t", bytes(60), 1) == errors.E_TOO_LARGE
    backlog = k.keeper.backlog
    assert backlog is not None and backlog.count == 1 and backlog.dropped == 0


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_clean_stop() -> None:
    k = Kept().online()
    for n in range(10):
        k.keeper.publish(b"t", bytes([n]), n % 3)
    assert k.keeper.stop(1000) == 0 and k.keeper.state == OFF
    line = k.site.line()
    assert bytes(line.up.log[-2:]) == b"\xe0\x00" and line.closed == 1
    k.site.serve()
    assert sorted(k.site.got) == [bytes([n]) for n in range(10)] and k.site.server.graceful
    assert k.keeper.poll() == errors.E_OFFLINE and k.events == [False]
    k.keeper.stop()
    k.online()
    assert k.events == [False, True]


def test_stopping_has_a_time_out_and_loses_nothing() -> None:
    k = Kept().online()
    k.site.deaf = True
    k.keeper.publish(b"t", b"kept", 1)
    begin = k.clock.now
    assert k.keeper.stop(3000) == errors.E_TIMEOUT and 3000 <= k.clock.now - begin < 3040
    assert k.keeper.state == OFF and k.site.line().closed == 1
    k.site.deaf = False
    k.online()
    assert k.keeper.flush(1000) == 0 and k.site.got == [b"kept"]
    # In the middle of an attempt, and in a pause.
    k.keeper.stop()
    for state in (CONNECTING, PAUSE):
        k = Kept(PollSite(Clock(), -1))
        k.keeper.start()
        k.until(state)
        k.keeper.stop()
        assert k.keeper.poll() == errors.E_OFFLINE and k.keeper.state == OFF


def test_a_handler_may_stop_it() -> None:
    k = Kept().online()
    k.client.on_message = lambda m: k.keeper.stop()
    k.site.server.publish(b"t", b"", 1)
    k.site.wait(1)
    assert k.keeper.poll() == errors.E_OFFLINE and k.keeper.state == OFF and k.site.line().closed == 1
    assert k.keeper.wait(10000) == errors.E_OFFLINE and len(k.site.lines) == 1


def test_a_handler_may_close_the_connection() -> None:
    k = Kept().online()
    k.client.on_message = lambda m: k.client.close()
    k.site.server.publish(b"t", b"", 0)
    k.site.wait(1)
    k.keeper.wait(100)
    k.until(ONLINE)
    assert k.keeper.connections == 2


def test_a_handler_that_raises_does_not_end_the_keeping() -> None:
    k = Kept().online()

    def angry(m: "Packet") -> None:
        raise RuntimeError("no")

    k.client.on_message = angry
    k.site.server.publish(b"t", b"", 1)
    k.site.wait(1)
    raised = 0
    for _ in range(3):
        try:
            k.keeper.poll()
        except RuntimeError:
            raised += 1
    assert raised == 1 and k.keeper.state == ONLINE
    assert k.keeper.publish(b"t", b"x", 1) > 0 and k.keeper.flush(1000) == 0


def test_bad_arguments() -> None:
    client = Client(Site(Clock()), b"c")
    bad = 0
    for options in (
        {"first_ms": 0},
        {"first_ms": 2000, "longest_ms": 1000},
        {"longest_ms": 1 << 29},
        {"refused_ms": -1},
        {"refused_ms": 1 << 29},
        {"connect_ms": 0},
        {"answer_ms": -1},
        {"block_ms": -1},
        {"subscriptions": -1},
    ):
        try:
            Keeper(client, **options)  # type: ignore[arg-type]
        except ValueError:
            bad += 1
    assert bad == 9


def test_a_session_of_its_own() -> None:
    session = ClientSession(b"mine", clean_start=True)
    k = Keeper(Client(Site(Clock()), session=session))
    k.subscribe(b"a", 1)
    k.start()
    k.wait(100)
    assert k.state == ONLINE and k._becomes[0] == 3
