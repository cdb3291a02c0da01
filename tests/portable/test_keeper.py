# heap: 1M
"""The keeper over lines that cannot be opened, break, fall silent; to servers that refuse, and forget."""

from pipe import Wire, packets, receive, send
from test_client import Line

from headwater import errors
from headwater.backlog import Backlog
from headwater.client import Client
from headwater.keeper import CONNECTING, GIVEN_UP, OFF, ONLINE, PAUSE, Keeper
from headwater.mqtt.server import SESSION_PRESENT, ServerSession
from headwater.mqtt.session import ClientSession
from headwater.wire import TICKS_MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.decode import Packet


class Clock:
    def __init__(self, now: int = 0):
        self.now = now


class Site:
    """A server and the way to it. ``wait`` is the only thing that takes time, and the server works meanwhile."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.lines: list[Line] = []
        #: When each connection was tried.
        self.tried: list[int] = []
        self.got: list[bytes] = []
        self.filters: list[tuple[bytes, int]] = []
        self.sessions = 0
        self.code = 0
        self.granted = -1
        self.away: OSError | MemoryError | None = None
        self.deaf = False
        self.up = (0, 0, 0)
        self.server = ServerSession()
        self.forget()

    def forget(self) -> None:
        """A new server, which knows nothing."""
        self.server = ServerSession()
        self.server.on_message = lambda m: self.got.append(m.payload_bytes())
        self.server.on_connect = self.connecting
        self.server.on_subscribe = self.subscribed
        if self.lines:
            self.lines[-1].hung_up = True

    def connecting(self, connect: object, packet: "Packet") -> int:
        return self.code or (SESSION_PRESENT if self.server._has_session else 0)

    def subscribed(self, packet: "Packet", qos: int) -> int:
        self.filters.append((packet.topic_bytes(), qos))
        return qos if self.granted < 0 else self.granted

    def open(self) -> Line:
        self.tried.append(self.clock.now)
        if self.away is not None:
            raise self.away
        self.lines.append(Line(Wire(*self.up), Wire()))
        self.server.lost()
        self.server.listen(self.clock.now)
        return self.lines[-1]

    def ticks_ms(self) -> int:
        return self.clock.now

    def wait(self, ms: int) -> None:
        assert ms > 0
        self.clock.now = (self.clock.now + ms) & TICKS_MASK
        if self.lines and not self.deaf and not self.line().hung_up and not self.line().closed:
            self.serve()

    def serve(self) -> None:
        line = self.line()
        moved = 1
        while moved:
            moved = receive(self.server, line.up)
            assert moved >= 0, moved
            moved += send(self.server, line.down)
        self.server.poll(self.clock.now)

    def line(self) -> Line:
        return self.lines[-1]

    def cut(self) -> None:
        self.line().hung_up = True


class PollSite(Site):
    """One that opens without making anybody wait: ``slow`` polls later, -1 for never."""

    def __init__(self, clock: Clock, slow: int = 3):
        super().__init__(clock)
        self.slow = slow
        self.left = -2
        self.hung_up = 0

    def ready(self) -> bool:
        if self.left == -2:
            self.left = self.slow
        if self.left > 0:
            self.left -= 1
        return self.left == 0

    def open(self) -> Line:
        assert self.left == 0, "open would wait"
        self.left = -2
        return super().open()

    def hang_up(self) -> None:
        self.left = -2
        self.hung_up += 1


class Kept:
    """A keeper of one client, and its sites."""

    def __init__(self, *sites: Site, start: int = 0, keep_alive: int = 60, **options: object):
        self.clock = sites[0].clock if sites else Clock(start)
        self.sites = sites or (Site(self.clock),)
        self.site = self.sites[0]
        self.client = Client(self.site, b"c", clean=False, keep_alive=keep_alive)
        self.keeper = Keeper(self.client, self.sites, **options)  # type: ignore[arg-type]
        self.events: list[object] = []
        self.answers: list[tuple[bytes, int]] = []
        self.keeper.on_online = lambda present: self.events.append(present)
        self.keeper.on_offline = lambda status: self.events.append(status)
        self.keeper.on_answer = lambda topic_filter, code: self.answers.append((bytes(topic_filter), code))

    def online(self) -> "Kept":
        self.keeper.start()
        assert self.keeper.wait(200) == 0
        assert self.keeper.state == ONLINE, self.keeper.status
        return self

    def until(self, state: int, ms: int = 1000000) -> int:
        """Wait for a state: how long that took."""
        begin = self.clock.now
        while self.keeper.state != state:
            self.keeper.wait(20)
            took = (self.clock.now - begin) & TICKS_MASK
            assert took <= ms, (self.keeper.state, self.keeper.status)
        return (self.clock.now - begin) & TICKS_MASK


# -- connecting without waiting ----------------------------------------------------------------------------------------


def test_a_client_connects_without_waiting() -> None:
    site = PollSite(Clock(), 3)
    client = Client(site, b"c")
    assert client.begin_connect() == 0 and not site.lines
    assert client.publish(b"t", b"") == errors.E_OFFLINE
    assert client.poll() == 0 and not site.lines
    assert client.poll() == 0 and len(site.lines) == 1 and not client.connected
    assert client.poll() == 0 and not client.connected
    site.wait(1)
    assert client.poll() == 0 and client.connected
    # Closing while it opens forgets the attempt.
    hung_up = site.hung_up
    client.close()
    assert client.begin_connect() == 0
    client.close()
    assert site.hung_up == hung_up + 2 and client.poll() == errors.E_OFFLINE
    # And a new one begins at the beginning.
    assert client.begin_connect() == 0 and client.begin_connect() == 0
    assert client.wait(200) == 0 and client.connected and len(site.lines) == 2


def test_a_client_says_why_it_could_not_begin() -> None:
    site = Site(Clock())
    client = Client(site, b"c")
    for error, number in ((OSError(113, "no route"), 113), (OSError(), 0), (MemoryError(), 12)):
        site.away = error
        assert client.begin_connect() == errors.E_UNREACHABLE == client.poll() == client.status
        assert client.errno == number and errors.blame(client.status) == errors.CONNECTION
    site.away = None
    client.session.client_id = bytes(70000)
    assert client.begin_connect() == errors.E_ARGUMENT == client.poll()
    assert site.line().closed == 1
    client.session.client_id = b"c"
    site.code = 5
    assert client.begin_connect() == 0
    client.poll()
    site.wait(1)
    assert client.poll() == errors.E_REFUSED and client.session.return_code == 5


def test_a_client_that_does_not_read_for_a_while() -> None:
    """The server waits, the line is not taken for dead, and nothing is lost."""
    k = Kept(keep_alive=4).online()
    got: list[bytes] = []
    k.client.on_message = lambda m: got.append(m.payload_bytes())
    k.client.reading = False
    for n in range(5):
        k.site.server.publish(b"t", bytes([n]), 1)
    assert k.client.wait(60000) == 0
    assert got == []
    assert sum(head == 0xC0 for head, _, _ in packets(k.site.line().up.log)) > 10
    k.client.reading = True
    assert k.client.wait(1000) == 0 and got == [bytes([n]) for n in range(5)]
    assert k.keeper.connections == 1


def test_a_handler_that_has_enough_for_now() -> None:
    """What is in the receive buffer comes; nothing more is read."""
    k = Kept().online()
    got: list[bytes] = []

    def enough(m: "Packet") -> None:
        got.append(m.payload_bytes())
        k.client.reading = False

    k.client.on_message = enough
    for _ in range(16):
        k.site.server.publish(b"t", bytes(100), 1)
    k.site.wait(1)
    k.client.poll()
    first = len(got)
    assert 0 < first <= 5 and k.client.wait(1000) == 0 and len(got) == first
    while len(got) < 16:
        k.client.reading = True
        assert k.client.wait(20) == 0


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_it_does_nothing_before_it_is_started() -> None:
    k = Kept()
    assert k.keeper.poll() == k.keeper.wait(100) == k.keeper.flush(100) == errors.E_OFFLINE
    assert k.keeper.state == OFF and not k.site.tried
    k.online()
    assert k.events == [False] and k.keeper.connections == 1 and k.site.tried == [0]
    k.keeper.start()
    assert k.keeper.wait(1000) == 0 and len(k.site.tried) == 1


def test_it_reconnects_and_what_was_unacknowledged_arrives() -> None:
    for polls in (False, True):
        clock = Clock(TICKS_MASK - 3000)
        k = Kept(PollSite(clock) if polls else Site(clock)).online()
        k.site.deaf = True
        assert k.keeper.publish(b"t", b"1", 1) > 0 and k.keeper.publish(b"t", b"2", 2) > 0
        k.site.cut()
        k.until(PAUSE)
        assert k.keeper.status == errors.E_CLOSED and 0 <= k.keeper.pause_ms <= 1000
        assert k.keeper.publish(b"t", b"3", 1) > 0
        assert k.keeper.publish(b"t", b"4") == errors.E_OFFLINE
        k.site.deaf = False
        assert k.until(ONLINE) <= 1100
        assert k.keeper.flush(1000) == 0
        assert k.site.got == [b"1", b"2", b"3"]
        assert k.events == [False, errors.E_CLOSED, True] and k.keeper.connections == 2


def test_pauses_are_random_and_their_limit_doubles() -> None:
    pauses = []
    for seed in range(40):
        k = Kept(seed=seed, first_ms=1000, longest_ms=16000)
        k.site.away = OSError(111)
        k.keeper.start()
        mine = []
        for _ in range(8):
            k.keeper.poll()
            assert k.keeper.state == PAUSE and k.keeper.status == errors.E_UNREACHABLE
            mine.append(k.keeper.pause_ms)
            k.clock.now += k.keeper.pause_ms
        pauses.append(mine)
    for i in range(8):
        limit = min(1000 << i, 16000)
        of_all = sorted(mine[i] for mine in pauses)
        # Anywhere up to the limit: the lowest and the highest tenth are visited, and no two thirds agree.
        assert of_all[0] < limit // 5 and limit * 4 // 5 < of_all[-1] <= limit, (i, of_all)
        assert len(set(of_all)) > 30
    assert pauses[0] == pauses[0][:] and pauses[0] != pauses[1]


def test_boards_differ_by_their_client_ids() -> None:
    seen = set()
    for n in range(20):
        k = Keeper(Client(Site(Clock()), b"board-%d" % n))
        seen.add(k.below(1 << 29))
    assert len(seen) == 20


def test_chance_has_no_favourites() -> None:
    k = Kept().keeper
    counts = [0] * 10
    for _ in range(10000):
        n = k.below(10)
        counts[n] += 1
    assert min(counts) > 800 and max(counts) < 1200, counts
    high = max([k.below(1 << 29) for _ in range(1000)])
    assert (1 << 29) - (1 << 24) < high < 1 << 29
    assert k.below(1) == 0


def test_a_port_may_bring_its_own_chance() -> None:
    k = Kept()
    asked: list[int] = []

    def below(n: int) -> int:
        asked.append(n)
        return n - 1

    k.keeper.below = below  # type: ignore[method-assign]
    k.site.away = OSError(111)
    k.keeper.start()
    k.keeper.wait(4000)
    assert asked == [1001, 2001, 4001] and k.site.tried == [0, 1000, 3000]


def test_connections_that_do_not_last_are_no_success() -> None:
    """A server that accepts and hangs up is not called faster than one that does not answer."""
    k = Kept(first_ms=1000, longest_ms=30000)
    k.keeper.below = lambda n: n - 1  # type: ignore[method-assign]
    k.keeper.start()
    for _ in range(5):
        k.until(ONLINE)
        k.site.cut()
        k.until(PAUSE)
    assert k.keeper.pause_ms == 16000 and k.keeper.failures == 5
    # One that lasts is.
    k.until(ONLINE)
    k.keeper.wait(30100)
    assert k.keeper.failures == 0
    k.site.cut()
    k.until(PAUSE)
    assert k.keeper.pause_ms == 1000


def test_several_servers_are_tried_in_turn() -> None:
    clock = Clock()
    a, b, c = Site(clock), PollSite(clock), Site(clock)
    a.away = OSError(111)
    b.slow = -1
    k = Kept(a, b, c, connect_ms=3000)
    k.keeper.start()
    assert 3000 <= k.until(ONLINE) <= 3100
    assert (len(a.tried), len(b.tried), len(c.tried)) == (1, 0, 1) and b.hung_up
    assert k.client.dialer is c
    # The one that worked is the first to be tried again; then all others, and only then comes a pause.
    c.away = OSError(111)
    c.cut()
    k.until(PAUSE)
    b.slow = 0
    k.until(ONLINE)
    assert len(c.tried) == 2 and a.tried[-1] - c.tried[-1] <= 40 and b.tried[-1] - a.tried[-1] <= 40
    assert k.client.dialer is b and len(a.tried) == 2
    assert k.keeper.publish(b"t", b"to b", 1) > 0 and k.keeper.flush(1000) == 0 and b.got == [b"to b"]


def test_an_attempt_never_lasts_longer_than_it_may() -> None:
    for site in (PollSite(Clock(), -1), Site(Clock())):
        # Nobody opens; or somebody opens, and never says CONNACK.
        site.deaf = True
        k = Kept(site, connect_ms=5000)
        k.client.session.response_ms = 100000
        k.keeper.start()
        k.keeper.poll()
        assert k.keeper.state == CONNECTING
        assert 5000 <= k.until(PAUSE) <= 5040
        assert k.keeper.status == errors.E_TIMEOUT == k.client.status
        if site.lines:
            assert site.line().closed == 1
        else:
            assert isinstance(site, PollSite) and site.hung_up


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_refusal_makes_it_slower() -> None:
    k = Kept(first_ms=1000, refused_ms=300000)
    k.keeper.below = lambda n: n - 1  # type: ignore[method-assign]
    k.site.code = 5
    k.keeper.start()
    assert k.keeper.wait(600500) == 0
    assert len(k.site.tried) == 3 and k.keeper.status == errors.E_REFUSED
    k.site.code = 0
    assert k.until(ONLINE, 300100)


def test_a_refusal_that_passes_is_a_failure_like_others() -> None:
    k = Kept(first_ms=1000, refused_ms=0)
    k.site.code = 3
    k.keeper.start()
    k.keeper.wait(30000)
    assert len(k.site.tried) > 4 and k.keeper.state != GIVEN_UP


def test_it_may_give_up_when_refused() -> None:
    k = Kept(refused_ms=0)
    k.site.code = 4
    k.keeper.start()
    assert k.keeper.wait(1000) == errors.E_REFUSED
    assert k.keeper.state == GIVEN_UP and k.client.session.return_code == 4
    assert k.keeper.wait(100000) == errors.E_REFUSED == k.keeper.flush(100) and len(k.site.tried) == 1
    assert k.keeper.publish(b"t", b"kept", 1) > 0
    k.site.code = 0
    k.keeper.start()
    k.until(ONLINE)
    assert k.keeper.flush(1000) == 0 and k.site.got == [b"kept"]


def test_only_when_all_servers_refuse() -> None:
    clock = Clock()
    a, b = Site(clock), Site(clock)
    a.code, b.away = 5, OSError(111)
    k = Kept(a, b, refused_ms=0)
    k.keeper.start()
    k.keeper.wait(10000)
    assert k.keeper.state != GIVEN_UP and len(a.tried) > 2
    b.away, b.code = None, 4
    k.until(GIVEN_UP)
    assert k.keeper.status == errors.E_REFUSED


def test_it_gives_up_when_connect_cannot_be_built() -> None:
    for client_id, status in ((b"c" * 600, errors.E_TOO_LARGE), (bytes(70000), errors.E_ARGUMENT)):
        k = Kept()
        k.client.session.client_id = client_id
        k.keeper.start()
        assert k.keeper.wait(1000) == status and k.keeper.state == GIVEN_UP and len(k.site.lines) == 1


# -- a connection that is dead -----------------------------------------------------------------------------------------


def test_a_half_open_line_is_found() -> None:
    k = Kept(keep_alive=4)
    k.client.session.response_ms = 2000
    k.online()
    k.site.deaf = True
    assert k.until(PAUSE) <= 5100
    assert k.keeper.status == errors.E_TIMEOUT and k.site.line().closed == 1
    k.site.deaf = False
    k.until(ONLINE)


def silence(k: Kept) -> None:
    """The line lives, and the server says nothing but what keeps it alive."""
    line = k.site.line()
    line.down.log += b"\xd0\x00"


def test_a_server_that_does_not_acknowledge() -> None:
    for how in ("publish", "subscribe", "unsubscribe"):
        k = Kept(answer_ms=7000, keep_alive=4)
        k.keeper.subscribe(b"first")
        k.online()
        k.site.deaf = True
        if how == "publish":
            assert k.keeper.publish(b"t", b"x", 1) > 0
        elif how == "subscribe":
            assert k.keeper.subscribe(b"a/#") == 0
        else:
            assert k.keeper.unsubscribe(b"first") == 0
        for _ in range(7):
            silence(k)
            k.keeper.wait(1000)
        assert k.keeper.wait(100) == 0 and k.keeper.state != ONLINE, how
        assert k.keeper.status == errors.E_TIMEOUT
        k.site.deaf = False
        k.until(ONLINE)
        assert k.keeper.flush(1000) == 0
        k.keeper.wait(100)
        assert k.site.got == [b"x"] * (how == "publish")
    # With 0 it waits for ever.
    k = Kept(answer_ms=0, keep_alive=4).online()
    k.site.deaf = True
    k.keeper.publish(b"t", b"x", 1)
    for _ in range(60):
        silence(k)
        k.keeper.wait(1000)
    assert k.keeper.state == ONLINE


def test_a_slow_server_is_not_a_dead_one() -> None:
    """Something is always under way, and the oldest is always another one."""
    for slots in (1, 2, 16):
        k = Kept()
        k.client = Client(k.site, b"c", clean=False, slots=slots)
        k.keeper = Keeper(k.client, answer_ms=1000)
        count = [0]

        def again(packet_id: int, k: Kept = k, count: "list[int]" = count) -> None:
            count[0] += 1
            assert k.keeper.publish(b"t", b"", 1) > 0

        k.keeper.on_delivered = again
        k.keeper.start()
        for _ in range(slots):
            k.keeper.publish(b"t", b"", 1)
        assert k.keeper.wait(3000) == 0
        assert k.keeper.connections == 1 and k.keeper.state == ONLINE and count[0] > 100


def test_a_slow_server_of_a_program_that_takes_on_delivered() -> None:
    k = Kept(answer_ms=1000).online()

    def again(packet_id: int) -> None:
        assert k.keeper.publish(b"t", b"", 1) > 0

    k.client.on_delivered = again
    for _ in range(10):
        k.keeper.publish(b"t", b"", 1)
    assert k.keeper.wait(3000) == 0 and k.keeper.connections == 1


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
    session = ClientSession(b"mine", clean=True)
    k = Keeper(Client(Site(Clock()), session=session))
    k.subscribe(b"a", 1)
    k.start()
    k.wait(100)
    assert k.state == ONLINE and k._becomes[0] == 3
