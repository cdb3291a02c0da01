"""A keeper of either protocol over a line that is always the same: the paths that both have."""

from dialers import PollDialer
from prove import prove

from headwater import errors
from headwater.reconnect import CONNECTING, ONLINE, PAUSE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOPIC = b"board/telemetry"
PAYLOAD = b"0123456789abcdef"


class Kept:
    """A keeper, and what it says; the methods without an underscore are the paths to be proved."""

    def __init__(self, dialer: PollDialer, client: "Any", keeper: "Any") -> None:
        self.dialer = dialer
        self.client = client
        self.keeper = keeper
        self.delivered = 0
        keeper.on_delivered = self._on_delivered

    def _on_delivered(self, number: int) -> None:
        self.delivered += 1

    def _until(self, state: int) -> None:
        while self.keeper.state != state:
            assert self.keeper.poll() == 0
            self.dialer.now += 100

    def _settle(self) -> None:
        for _ in range(4):
            assert self.keeper.poll() == 0
        assert self.keeper.waiting() == 0

    def _start(self) -> None:
        self.keeper.start()
        self._until(ONLINE)
        self._settle()

    def idle(self) -> None:
        self.dialer.now += 1000
        assert self.keeper.poll() == 0

    def publish_0(self) -> None:
        assert self.keeper.publish(TOPIC, PAYLOAD) == 0
        self._settle()

    def publish_1(self) -> None:
        before = self.delivered
        assert self.keeper.publish(TOPIC, PAYLOAD, 1) > 0
        self._settle()
        assert self.delivered == before + 1

    def nobody(self) -> None:
        """An attempt that comes to nothing, and the pause behind it."""
        self._until(CONNECTING)
        self._until(PAUSE)

    def offline(self) -> None:
        assert self.keeper.publish(TOPIC, PAYLOAD) == errors.E_OFFLINE
        assert self.keeper.publish(TOPIC, PAYLOAD, 1) > 0
        self.client.session.outbox.clear()

    def full(self) -> None:
        while self.keeper.publish(TOPIC, PAYLOAD, 1) > 0:
            pass
        assert self.keeper.publish(TOPIC, PAYLOAD, 1) == errors.E_WINDOW


def prove_online(on: Kept) -> None:
    prove("keeper idle", on.idle)
    prove("keeper publish qos 0", on.publish_0)
    prove("keeper publish qos 1", on.publish_1)


def prove_offline(on: Kept) -> None:
    prove("nobody answers", on.nobody, 20)
    prove("publish while offline", on.offline)
    prove("refused by a full outbox", on.full)
