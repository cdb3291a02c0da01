"""The board's program under test: WiFi, TCP and MQTT of headwater, polled in the simulated world."""

from headwater.connection import RamOutbox
from headwater.mqtt.client import Client
from headwater.mqtt.keeper import CONNECTING, ONLINE, PAUSE, Keeper
from headwater_board import interface
from headwater_board.resolver import Resolver
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi
from world.clock import clock
from world.rig import HOST, PASSWORD, SSID

#: The states of the machine, WiFi's and the keeper's, in which a fault can begin.
STATES = (
    "interface starting",
    "joining",
    "waiting for address",
    "WiFi pause",
    "resolving",
    "TCP connecting",
    "CONNECT sent",
    "session pause",
    "online, idle",
    "online, unacknowledged",
)
_PUBLISH_MS = 1000


class Board:
    """Publishes numbers at QoS 1, one a second: ``poll``, then ``rest``."""

    def __init__(self, world, publish_ms=_PUBLISH_MS, steps=(50, 200, 1000), **options):
        self.world = world
        # The longest pauses between polls: while an answer is awaited, during a pause, and while online and idle.
        self.steps = steps
        self.wifi = Wifi([(SSID, PASSWORD)], **options)
        client = Client(
            Tcp(HOST, resolver=Resolver()),
            b"board",
            clean_start=False,
            keep_alive=30,
            outbox=RamOutbox(1024, 16),
        )
        self.keeper = Keeper(client, network=self.wifi)
        self.client = client
        self.commands = 0
        client.on_message = self._command
        self.keeper.subscribe(b"board/command", 1)
        self.publish_ms = publish_ms
        self.accepted = 0
        self.refused = 0
        self._publish_at = 0
        self._payload = bytearray(8)

    def _command(self, packet):
        self.commands += 1

    def poll(self):
        """Poll, and publish if it is time."""
        keeper = self.keeper
        keeper.poll()
        now = clock.now
        if self.publish_ms and now >= self._publish_at:
            self._publish_at = now + self.publish_ms
            n = self.accepted
            for i in range(7, -1, -1):
                self._payload[i] = 48 + n % 10
                n //= 10
            if keeper.publish(b"board/n", self._payload, 1) >= 0:
                self.accepted += 1
            else:
                self.refused += 1
            keeper.poll()

    def rest(self):
        """Let time pass: to the next event, or the next poll."""
        state = self.keeper.state
        session = self.client.session
        if (
            state == CONNECTING
            or self.wifi.state == interface.CONNECTING
            or session.in_flight
            or session.tx_end
        ):
            step = self.steps[0]
        else:
            step = self.steps[2 if state == ONLINE else 1]
        if self.publish_ms:
            step = min(step, self._publish_at - clock.now)
        clock.jump(step)

    def state(self):
        """Return which of STATES this is, or None for a moment between them."""
        wifi, keeper = self.wifi.state, self.keeper.state
        if wifi == interface.STARTING:
            return STATES[0]
        if wifi == interface.CONNECTING:
            # The station's own phase tells joining from DHCP.
            return STATES[2] if self.world.station.phase == 2 else STATES[1]
        if wifi == interface.PAUSE:
            return STATES[3]
        if keeper == CONNECTING:
            dialer = self.client.dialer
            if self.client.transport is not None:
                return STATES[6]
            return STATES[5] if dialer._connecting else STATES[4]
        if keeper == PAUSE:
            return STATES[7]
        if keeper == ONLINE:
            return STATES[9] if self.client.session.in_flight else STATES[8]
        return None
