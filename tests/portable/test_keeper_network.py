# heap: 768K
"""A keeper that owns the network below its connection."""

from kept import Clock, Kept, PollSite

from headwater import errors
from headwater.fmq.client import Client as FmqClient
from headwater.fmq.keeper import Keeper as FmqKeeper
from headwater.mqtt.keeper import CONNECTING, GIVEN_UP, OFF, ONLINE, PAUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Link:
    """A network that is ``up`` or not, and writes down what it is told."""

    def __init__(self, up: bool = True):
        self.up = up
        self.told: list[Any] = []
        self.busy: bool | None = None
        self.polls = 0

    def start(self) -> None:
        self.told.append("start")

    def stop(self) -> None:
        self.told.append("stop")

    def poll(self, busy: bool = True) -> bool:
        self.busy = busy
        self.polls += 1
        return self.up

    def failed(self, status: int, errno: int) -> None:
        self.told.append((status, errno))

    def works(self) -> None:
        self.told.append("works")


def test_it_connects_at_once_when_the_network_is_up() -> None:
    link = Link(False)
    k = Kept(network=link)
    assert k.keeper.wait(100) == errors.E_OFFLINE
    assert not link.polls and not link.told
    k.keeper.start()
    assert k.keeper.wait(60000) == 0
    assert link.told == ["start"] and not k.site.tried and not k.events
    assert k.keeper.state == PAUSE
    link.up = True
    k.until(ONLINE, 60)
    assert link.told == ["start", "works"] and k.events == [False]
    k.keeper.start()
    assert link.told == ["start", "works"]


def test_a_lost_network_ends_the_connection_once() -> None:
    link = Link()
    k = Kept(network=link).online()
    assert k.keeper.subscribe(b"t", 1) == 0
    k.keeper.wait(1000)
    link.up = False
    assert k.keeper.poll() == 0
    assert k.keeper.state == PAUSE and k.keeper.status == errors.E_UNREACHABLE == k.client.status
    assert k.site.line().closed == 1 and not k.client.connected
    assert k.keeper.publish(b"t", b"later", 1) > 0
    k.keeper.wait(3600000)
    assert len(k.site.tried) == 1 and k.events == [False, errors.E_UNREACHABLE]
    # The loss of a network is nobody's failure to answer.
    assert link.told == ["start", "works"] and k.keeper.failures == 0
    link.up = True
    assert k.until(ONLINE) <= 1100
    assert k.keeper.flush(1000) == 0 and k.site.got == [b"later"]
    assert k.events == [False, errors.E_UNREACHABLE, True]


def test_boards_of_one_access_point_do_not_come_back_at_once() -> None:
    pauses = set()
    for seed in range(40):
        link = Link()
        k = Kept(seed=seed, network=link).online()
        link.up = False
        k.keeper.wait(10000)
        link.up = True
        k.keeper.poll()
        pauses.add(k.keeper.pause_ms)
        assert not k.site.tried[1:] and k.keeper.since == k.clock.now
    assert len(pauses) > 30 and max(pauses) <= 1000


def test_a_network_that_goes_while_the_keeper_connects_or_waits() -> None:
    link = Link()
    k = Kept(PollSite(Clock(), -1), network=link)
    k.keeper.start()
    k.until(CONNECTING)
    hung_up = k.site.hung_up  # type: ignore[attr-defined]
    link.up = False
    k.keeper.wait(100)
    assert k.keeper.state == PAUSE and not k.events
    assert k.site.hung_up > hung_up  # type: ignore[attr-defined]
    # A long pause after many failures ends with the network that they happened over.
    link = Link()
    k = Kept(network=link)
    k.site.away = OSError(113, "no route")
    k.keeper.start()
    k.until(PAUSE)
    while k.keeper.pause_ms < 30000:
        k.keeper.wait(1000)
    link.up = False
    k.keeper.wait(1000)
    k.site.away = None
    link.up = True
    assert k.until(ONLINE) <= 1100


def test_the_network_is_told_what_failed() -> None:
    link = Link()
    k = Kept(network=link, connect_ms=5000)
    k.keeper.start()
    for away in (OSError(113, "no route"), OSError(111, "refused")):
        k.site.away = away
        before = len(k.site.tried)
        while len(k.site.tried) == before:
            k.keeper.wait(20)
        assert link.told[-1] == (errors.E_UNREACHABLE, away.errno)
    k.site.away = None
    k.site.deaf = True
    k.until(CONNECTING)
    k.until(PAUSE)
    assert link.told[-1][0] == errors.E_TIMEOUT
    k.site.deaf = False
    k.until(ONLINE)
    assert link.told[-1] == "works"
    k.site.cut()
    k.until(PAUSE)
    assert link.told[-1] == (errors.E_CLOSED, 0)
    k.until(ONLINE)
    k.site.deaf = True
    k.until(PAUSE)
    assert link.told[-1] == (errors.E_TIMEOUT, 0)


def test_it_is_busy_with_what_is_under_way() -> None:
    link = Link()
    k = Kept(network=link)
    k.keeper.start()
    k.keeper.poll()
    assert link.busy is True
    k.until(ONLINE)
    k.keeper.wait(1000)
    assert link.busy is False
    k.keeper.publish(b"t", b"", 1)
    k.keeper.poll()
    assert link.busy is True
    k.keeper.flush(1000)
    k.keeper.poll()
    assert link.busy is False


def test_it_leaves_the_network_up() -> None:
    link = Link()
    k = Kept(network=link).online()
    k.keeper.stop()
    polls = link.polls
    assert k.keeper.poll() == errors.E_OFFLINE and link.polls == polls and "stop" not in link.told
    k.keeper.start()
    k.until(ONLINE)
    # Also when it gives up, and when a handler stops it.
    k.site.code = 5
    k.keeper.refused_ms = 0
    k.site.cut()
    k.until(GIVEN_UP)
    polls = link.polls
    assert k.keeper.poll() == errors.E_REFUSED and link.polls == polls
    k.site.code = 0
    k.keeper.start()
    k.until(ONLINE)
    k.keeper.on_offline = lambda status: k.keeper.stop()
    link.up = False
    assert k.keeper.poll() == errors.E_OFFLINE and k.keeper.state == OFF


def test_a_keeper_of_fmq_owns_its_network_too() -> None:
    link = Link(False)
    keeper = FmqKeeper(FmqClient(PollSite(Clock()), b"board"), network=link)
    keeper.start()
    assert keeper.poll() == 0 and link.told == ["start"] and keeper.state == PAUSE
    link.up = True
    keeper.poll()
    keeper.poll()
    assert keeper.state == CONNECTING
