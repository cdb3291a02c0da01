# paths: poll while the link is up, power is saved and spent, connections over the link fail
# paths: keeper idle over WiFi, keeper publish qos 1 over WiFi
# frames: power is saved and spent, keeper idle over WiFi, keeper publish qos 1 over WiFi
"""WiFi while the link is up, alone and below a keeper. The driver is one in Python that allocates nothing."""

import sys

from dialers import PollDialer
from keepers import Kept
from pairs import Line
from prove import prove


class Nic:
    """``network``, and its station."""

    STAT_GOT_IP = 1010
    PM_NONE = 0
    PM_POWERSAVE = 2
    pm = 0

    def active(self, on: "bool | None" = None) -> bool:
        return bool(on)

    def config(self, pm: int = 0, reconnects: int = 0) -> None:
        self.pm = pm

    def status(self) -> int:
        return 1001

    def connect(self, ssid: str, password: str) -> None:
        pass

    def isconnected(self) -> bool:
        return True

    def WLAN(self) -> "Nic":  # noqa: N802 - as in the module
        return self


nic = Nic()
sys.modules["network"] = nic  # type: ignore[assignment]

from headwater import errors  # noqa: E402 - ``network`` is there by now
from headwater.mqtt.client import Client  # noqa: E402
from headwater.mqtt.keeper import Keeper  # noqa: E402
from headwater.mqtt.server import ServerSession  # noqa: E402
from headwater_board.wifi import UP, Wifi  # noqa: E402

wifi = Wifi([("ssid", "password")], power_save=True, offline_ms=100000)
dialer = PollDialer(Line(ServerSession(rx_size=512, tx_size=512, outbox_size=512, slots=4)))
wifi.ticks_ms = dialer.ticks_ms
client = Client(dialer, b"board", clean_start=False, slots=4)
keeper = Keeper(client, network=wifi)
on = Kept(dialer, client, keeper)


def poll() -> None:
    dialer.now += 50
    assert wifi.poll()


def save() -> None:
    dialer.now += 1000
    assert wifi.poll(False)
    assert nic.pm == Nic.PM_POWERSAVE
    assert wifi.poll(True)
    assert nic.pm == Nic.PM_NONE


def fail() -> None:
    wifi.failed(errors.E_REFUSED, 0)
    wifi.failed(errors.E_TIMEOUT, 0)
    wifi.works()


on._start()
assert wifi.state == UP
prove("poll while the link is up", poll)
prove("power is saved and spent", save)
prove("connections over the link fail", fail)
prove("keeper idle over WiFi", on.idle)
prove("keeper publish qos 1 over WiFi", on.publish_1)
