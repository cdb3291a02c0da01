# heap: 768K
"""The keeper over lines that cannot be opened, break, fall silent; to servers that refuse; see ``kept.py``."""

from kept import Clock, Kept, PollSite, Site
from pipe import packets

from headwater import errors
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import CONNECTING, GIVEN_UP, OFF, ONLINE, PAUSE, Keeper
from headwater.wire import TICKS_MASK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.mqtt.packets import Packet


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


def test_a_client_that_does_not_read_gets_what_is_due() -> None:
    """CONNACK, acknowledgements and answers, with the messages that lie before them."""
    for ask in ("publish 1", "publish 2", "subscribe", "connect"):
        k = Kept().online()
        got: list[bytes] = []
        k.client.on_message = lambda m, got=got: got.append(m.payload_bytes())
        k.client.reading = False
        for n in range(16):
            k.site.server.publish(b"t", bytes([n]) * 100, 1)
        assert k.client.wait(1000) == 0 and not got
        if ask == "subscribe":
            assert k.keeper.subscribe(b"other", 1) == 0
            k.keeper.wait(1000)
            assert k.answers == [(b"other", 1)]
        elif ask == "connect":
            k.client.close()
            k.until(PAUSE)
            k.until(ONLINE)
            assert k.keeper.connections == 2
            continue
        else:
            assert k.keeper.publish(b"t", b"", int(ask[-1])) > 0
            assert k.keeper.flush(10000) == 0
        assert len(got) == 16 and not k.client.session.awaits()
        k.site.server.publish(b"t", b"later", 1)
        assert k.client.wait(1000) == 0 and len(got) == 16


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


def test_an_acknowledgement_behind_much_else_is_not_late() -> None:
    """The program comes back after a while, and there is more to receive than one poll takes."""
    k = Kept(answer_ms=1000, keep_alive=600).online()
    got: list[int] = []
    k.client.on_message = lambda m: got.append(1)
    assert k.keeper.publish(b"t", b"x", 1) > 0
    for _ in range(600):
        k.site.line().down.log += b"\x30\x22\x00\x01t" + bytes(31)
    k.site.serve()
    k.clock.now += 60000
    while k.client.session.outbox.count:
        assert k.keeper.poll() == 0 and k.keeper.state == ONLINE
    assert len(got) == 600 and k.keeper.connections == 1


def test_a_slow_server_is_not_a_dead_one() -> None:
    """Something is always under way, and the oldest is always another one."""
    for slots in (1, 2, 16):
        k = Kept()
        k.client = Client(k.site, b"c", clean_start=False, slots=slots)
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
