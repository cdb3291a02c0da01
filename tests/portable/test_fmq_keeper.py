# heap: 1M
"""The keeper of FMQ's client: what it asks a hub for, and asks for again over connections that break."""

from fmq_kept import Kept
from pipe import receive

from headwater import errors
from headwater.errors import E_ARGUMENT, E_FILTER, E_OFFLINE, E_REFUSED, E_UNKNOWN_ID, E_WINDOW
from headwater.fmq import spec
from headwater.fmq.client import Client
from headwater.fmq.frames import tag_list
from headwater.fmq.keeper import GIVEN_UP, ONLINE, PAUSE, Keeper
from headwater.fmq.queues import register
from headwater.fmq.session import HELLO


def test_subscriptions_come_back_when_the_hub_has_lost_them() -> None:
    k = Kept()
    assert k.keeper.subscribe(b"a/#") == 0
    assert k.keeper.subscribe(bytearray(b"b"), (b"eu",), b"t > 1") == 0
    k.online().settled()
    assert k.answers == [(b"a/#", 0), (b"b", 0)] and k.frames(spec.SUBSCRIBE) == 2
    k.again()
    assert k.frames(spec.SUBSCRIBE) == 2
    k.again(forget=True)
    assert k.frames(spec.SUBSCRIBE) == 4 and len(k.answers) == 4
    assert sorted(one[0] for one in k.hub.subscriptions.values()) == [b"a/#", b"b"]
    k.hub.publish(b"a/x", b"1", 2)
    k.settled()
    assert k.got == [(b"", b"1")] and k.hub.quiet()


def test_consumers_begin_again_on_each_connection() -> None:
    k = Kept()
    assert k.keeper.consume(b"jobs", b"workers", window=4) == 0
    assert k.keeper.consume(b"jobs", b"others", need_ack=False) == 0
    k.online().settled()
    for forget in (False, True, False):
        first, other = sorted(k.hub.subscriptions)
        assert k.hub.consumers[first][1:] == (4, True) and k.hub.consumers[other][1:] == (0, False)
        before = len(k.got)
        k.hub.give(first, b"jobs", b"1")
        k.hub.give(other, None, b"2")
        k.settled()
        assert k.got[before:] == [(b"jobs", b"1"), (b"jobs", b"2")] and k.hub.quiet()
        consumed = k.frames(spec.CONSUME)
        k.again(forget)
        assert k.frames(spec.CONSUME) == consumed + 2
    assert k.answers == [(b"jobs", 0)] * 4 and k.frames(spec.SUBSCRIBE) == 4


def test_what_was_not_acknowledged_comes_again_to_the_consumer() -> None:
    k = Kept()
    k.keeper.consume(b"jobs", b"workers")
    k.online().settled()
    k.client.session.auto_ack = False
    (sid,) = k.hub.subscriptions
    k.hub.give(sid, b"jobs", b"1")
    k.settled()
    assert len(k.got) == 1 and not k.hub.delivered
    k.client.session.auto_ack = True
    k.again()
    assert len(k.got) == 2 and len(k.hub.delivered) == 1


def test_a_consumer_that_the_hub_ends_begins_again_on_the_next_connection() -> None:
    k = Kept()
    k.keeper.consume(b"jobs", b"workers")
    k.online().settled()
    (sid,) = k.hub.subscriptions
    k.hub.end_consumer(sid, 0x8F)
    k.settled()
    assert k.answers == [(b"jobs", 0), (b"jobs", 0x8F)] and not k.hub.consumers
    k.again()
    assert len(k.answers) == 2 and list(k.hub.consumers) == [sid]


def test_what_is_refused_is_told_and_asked_for_again_in_another_session() -> None:
    k = Kept()
    k.keeper.consume(b"jobs", b"workers")
    k.hub.refuse = (spec.SUBSCRIBE, 0x87, b"no")
    k.online().settled()
    assert k.answers == [(b"jobs", 0x87)] and not k.frames(spec.CONSUME)
    k.hub.refuse = None
    k.again()
    assert len(k.answers) == 1
    k.again(forget=True)
    assert k.answers[1:] == [(b"jobs", 0)] and len(k.hub.consumers) == 1


def test_a_subscription_is_taken_back() -> None:
    k = Kept()
    keeper = k.keeper
    for group in (b"", b"workers"):
        assert (keeper.consume(b"t", group) if group else keeper.subscribe(b"t")) == 0
    k.online().settled()
    assert keeper.unsubscribe(b"t", b"nobody") == E_UNKNOWN_ID
    assert keeper.unsubscribe(b"t") == 0
    k.settled()
    assert [one[3] for one in k.hub.subscriptions.values()] == [b"workers"] and len(k.hub.consumers) == 1
    assert keeper.unsubscribe(b"t", b"workers") == 0
    k.settled()
    assert not k.hub.subscriptions and not k.hub.consumers
    assert k.answers == [(b"t", 0)] * 4
    assert keeper.unsubscribe(b"t") == E_UNKNOWN_ID
    k.again()
    assert not k.hub.subscriptions


def test_a_subscription_is_taken_back_before_it_is_granted_or_over_a_cut() -> None:
    """What the hub may have, it is told, whatever became of the answers."""
    for when in ("offline", "asked", "answer lost", "answer of the end lost", "forgotten"):
        k = Kept()
        k.keeper.consume(b"t", b"g")
        if when == "offline":
            assert k.keeper.unsubscribe(b"t", b"g") == 0
            k.online().settled()
        else:
            k.online()
            if when in ("asked", "answer lost"):
                k.keeper.poll()
                assert not k.answers
            else:
                k.settled()
            assert k.keeper.unsubscribe(b"t", b"g") == 0
            if when == "answer lost":
                # The hub has it; we do not know.
                assert receive(k.hub, k.dialer.lines[-1].up) > 0 and k.hub.subscriptions  # type: ignore[arg-type]
                k.again()
            elif when == "answer of the end lost":
                k.keeper.poll()
                assert receive(k.hub, k.dialer.lines[-1].up) > 0 and not k.hub.subscriptions  # type: ignore[arg-type]
                k.again()
            elif when == "forgotten":
                k.again(forget=True)
            k.settled()
        # Nothing of it is left here either.
        assert all(state in (0, HELLO) for state in k.client.session.requests.state), when
        assert not k.hub.subscriptions and not k.hub.consumers, when
        # 0x11: the hub does not have it.
        assert k.answers[-1] in ((b"t", 0), (b"t", 0x11)), when
        assert k.keeper.unsubscribe(b"t", b"g") == E_UNKNOWN_ID, when


def test_what_the_program_asks_for_itself() -> None:
    k = Kept()
    answers: list[tuple[int, int]] = []
    k.keeper.on_request = lambda number, code: answers.append((number, code))
    k.keeper.subscribe(b"t")
    k.online()
    number = register(k.client.session, b"made", 3)
    assert number > 0
    k.settled()
    assert answers == [(number, 0)] and k.answers == [(b"t", 0)] and k.hub.topics == {b"made": 3}
    # What the client had before is what the keeper begins with.
    client = Client(k.dialer, b"other")
    client.on_answer = k.keeper.on_request
    assert Keeper(client).on_request is k.keeper.on_request


def test_what_cannot_be_asked_for() -> None:
    keeper = Kept(subscriptions=1).keeper
    assert keeper.subscribe(b"a/#/b") == E_FILTER
    assert keeper.subscribe("text") == E_ARGUMENT  # type: ignore[arg-type]
    assert keeper.subscribe(b"a", 5) == E_ARGUMENT  # type: ignore[arg-type]
    assert keeper.subscribe(b"a", (), "t > 1") == E_ARGUMENT  # type: ignore[arg-type]
    assert keeper.consume(b"a", b"") == E_ARGUMENT
    assert keeper.consume(b"a", None) == E_ARGUMENT  # type: ignore[arg-type]
    assert keeper.consume(b"a", b"g", window=17) == E_ARGUMENT
    assert keeper.consume(b"a", b"g", window=-1) == E_ARGUMENT
    assert keeper.consume(b"a", b"g", window=1000, need_ack=False) == 0
    assert keeper.subscribe(b"a") == E_WINDOW
    try:
        Kept(backlog=1)
    except ValueError:
        pass
    else:
        raise AssertionError("a backlog was taken")
    # The same again is the same place.
    assert keeper.consume(b"a", b"g") == 0


def test_messages_wait_in_the_outbox_for_the_hub() -> None:
    k = Kept(first_ms=60000)
    tags = tag_list((b"eu",))
    # Before there is a process number there are no ids.
    assert k.keeper.publish(b"t", b"0", 1) == E_OFFLINE
    k.online().settled()
    k.dialer.lines[-1].hung_up = True
    k.until(lambda: k.keeper.state == PAUSE)
    numbers = [k.keeper.publish(b"t", b"%d" % n, 1 + n % 2, False, tags) for n in range(1, 17)]
    assert min(numbers) > 0 and k.keeper.publish(b"t", b"17", 1) == E_WINDOW
    assert k.keeper.publish(b"t", b"", 0) == E_OFFLINE
    assert k.keeper.flush(100000) == 0
    assert [payload for _, payload, _, _ in k.hub.stored] == [b"%d" % n for n in range(1, 17)]
    assert k.keeper.stop(1000) == 0
    k.dialer.serve()
    assert k.hub.ended


def test_a_publisher_that_waits_for_room() -> None:
    k = Kept(block_ms=60000)
    k.keeper.start()
    for n in range(40):
        if n % 10 == 0 and n:
            k.dialer.lines[-1].hung_up = True
        assert k.keeper.publish(b"t", b"%d" % n, 2) > 0
    assert k.keeper.flush(100000) == 0
    assert [payload for _, payload, _, _ in k.hub.stored] == [b"%d" % n for n in range(40)]


def test_a_hub_that_refuses_for_good_or_for_now() -> None:
    for code, state in ((0x87, GIVEN_UP), (0x97, PAUSE)):
        k = Kept(refused_ms=0)
        k.hub.refuse = (spec.AUTH, code, b"")
        k.keeper.start()
        while k.keeper.state != state or not k.keeper.status:
            k.keeper.wait(20)
        assert k.keeper.status == E_REFUSED and errors.blame(E_REFUSED)
        assert k.client.session.return_code == code


def test_a_hub_that_does_not_answer_a_request_is_left() -> None:
    k = Kept(answer_ms=3000)
    k.online()
    k.keeper.subscribe(b"t")
    k.dialer.deaf = True
    k.until(lambda: k.keeper.state != ONLINE)
    assert k.keeper.status == errors.E_TIMEOUT
    k.dialer.deaf = False
    k.until(lambda: k.answers == [(b"t", 0)])


# -- hubs that do not lead -----------------------------------------------------------------------------------------


class Aimed:
    """A dialer that notes where it is aimed at; the hub refuses with the leader's address until it is."""

    def __init__(self, k: Kept, leader: bytes):
        self.k = k
        self.dialer = k.dialer
        self.leader = leader
        self.aimed: list[tuple[str, int]] = []
        self.ticks_ms = k.dialer.ticks_ms
        self.wait = k.dialer.wait
        self.refuses = True
        self.opened = 0

    def open(self) -> "object":
        self.opened += 1
        self.k.hub.refuse = (spec.AUTH, 0x9D, self.leader) if self.refuses else None
        return self.dialer.open()

    def aim(self, host: str, port: int) -> None:
        self.aimed.append((host, port))


def moved(leader: bytes, n: int = 1) -> "tuple[Kept, list[Aimed]]":
    k = Kept()
    dialers = [Aimed(k, leader) for _ in range(n)]
    k.keeper.dialers = tuple(dialers)  # type: ignore[arg-type]
    k.keeper.start()
    return k, dialers


def test_a_named_leader_is_dialed_at_once() -> None:
    for text, address in (
        (b"10.0.0.7:7443", ("10.0.0.7", 7443)),
        (b"[fd00::7]:1", ("fd00::7", 1)),
        (b"hub-b:7760", ("hub-b", 7760)),
    ):
        k, (dialer,) = moved(text)
        k.until(lambda d=dialer: d.aimed)
        dialer.refuses = False
        k.until(lambda keeper=k.keeper: keeper.state == ONLINE)
        assert dialer.aimed == [address] and dialer.opened == 2 and k.keeper.failures == 0
        # And again after the connection is lost.
        dialer.refuses = True
        k.dialer.lines[-1].hung_up = True
        k.until(lambda d=dialer: len(d.aimed) == 2)


def test_hubs_that_name_each_other_end_a_round() -> None:
    k, dialers = moved(b"h:1", 2)
    k.until(lambda: k.keeper.failures)
    assert [d.aimed for d in dialers] == [[("h", 1)], [("h", 1)]] and [d.opened for d in dialers] == [2, 2]


def test_no_address_is_followed_by_the_next_dialer() -> None:
    for text in (b"", b"nonsense", b"h:x", b":"):
        k, dialers = moved(text, 2)
        k.until(lambda d=dialers: d[1].opened)
        assert not dialers[0].aimed and dialers[0].opened == 1
