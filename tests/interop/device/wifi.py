"""A board that publishes a number twice a second; ``settings`` says over which networks, and where to.

Without networks it has a cable.
"""

import time

import machine
import network
import settings

from headwater.mqtt.client import Client
from headwater.mqtt.keeper import Keeper
from headwater_board.ethernet import Ethernet
from headwater_board.resolver import Resolver
from headwater_board.tcp import Tcp
from headwater_board.wifi import Wifi


def reset() -> None:
    print("reset", wifi.error)
    machine.reset()


resolver = (
    Resolver("192.168.4.1", timeout_ms=1000, retry_ms=200) if getattr(settings, "RESOLVER", False) else None
)
if settings.NETWORKS:
    wifi = Wifi(
        settings.NETWORKS, country="DE", hostname="board", connect_ms=3000, power_save=True, reset=reset
    )
else:
    if hasattr(network, "LAN"):
        nic = network.LAN(mdc=23, mdio=18, phy_type=network.PHY_LAN8720, phy_addr=0)
    else:
        nic = network.WIZNET5K(None, None, None)
    wifi = Ethernet(nic, connect_ms=3000, attempts=2, reset=reset)
dialer = Tcp("broker.test", settings.PORT, timeout_ms=500, resolver=resolver)
client = Client(
    dialer, b"board", clean_start=False, keep_alive=2, response_ms=1000, slots=64, outbox_size=4096
)
keeper = Keeper(client, first_ms=50, longest_ms=400, connect_ms=1500, network=wifi)
keeper.on_online = lambda present: print("online", reason(), counters())
keeper.on_offline = lambda status: print("offline", status, counters())


def reason() -> "str | int":
    return wifi.reason if settings.NETWORKS else wifi.status


def counters() -> "tuple[int, ...]":
    return wifi.connects, wifi.lost, wifi.restarts, wifi.resets


print("start", machine.reset_cause())
keeper.start()
n = 0
due = time.ticks_ms()
state = -1
while True:
    keeper.wait(20)
    if wifi.state != state:
        state = wifi.state
        print("wifi", state, reason())
    if time.ticks_diff(time.ticks_ms(), due) >= 0:
        due = time.ticks_add(due, 500)
        keeper.publish(b"numbers", b"%d" % n, 1)
        n += 1
