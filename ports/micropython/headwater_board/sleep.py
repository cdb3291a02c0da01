"""Sleep between messages: deep sleep, after which the board restarts, and light sleep.

    from headwater_board import sleep

    client = Client(Tcp("10.0.0.2"), b"meter-7", clean_start=False, outbox=flash_outbox("/outbox.hwj"))
    keeper = Keeper(client, network=Wifi([("ssid", "password")]))
    keeper.publish(b"meter-7/celsius", b"21.5", 1)
    sleep.cycle(keeper, 600000)

With a server address that is known, delivering takes three round trips: TCP, CONNECT, PUBLISH with its acknowledgement
(``tools.round_trips``). Import this module first: the time awake counts from then.
"""

import json
import sys

from micropython import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater_board.boots import Boots
    from headwater_board.resolver import Resolver

    def ticks_ms() -> int:
        """Return ``time.ticks_ms()``, typed as an integer."""
        ...

    def sleep_ms(ms: int) -> None:
        """``time.sleep_ms``."""
        ...
else:
    from time import sleep_ms, ticks_ms

_TICKS_MASK = const(0x3FFFFFFF)

#: The longest sleep in milliseconds of a port without DEEPSLEEP_RESET, such as RP2: 71 minutes.
EMULATED_LIMIT_MS = const(4294967)
# Of ESP32, whose ``deepsleep`` takes a signed 32-bit number.
_LIMIT_MS = const(2147483647)
# How long the interface may take to send DISCONNECT before it goes down.
_GOODBYE_MS = const(50)
_woke = ticks_ms()


def cycle(
    keeper: "Any",
    sleep_ms: int,
    timeout_ms: int = 20000,
    linger_ms: int = 0,
    boots: "Boots | None" = None,
    resolver: "Resolver | None" = None,
) -> None:
    """Connect, wait until everything published is acknowledged, print the time awake, and sleep.

    ``timeout_ms`` bounds the wait. What is unacknowledged then stays in the outbox; a flash outbox keeps it for the
    next start. ``linger_ms`` is for messages that the server has kept for the board.

    ``boots`` stores the cause of the next start on a port that does not know it (RP2). ``resolver`` stores the
    addresses that it has learned (``save_addresses``). Raises ValueError for a sleep that is too long for the port.
    """
    import machine

    check(sleep_ms)
    keeper.start()
    keeper.flush(timeout_ms)
    if linger_ms:
        keeper.wait(linger_ms)
    waiting = keeper.waiting()
    _stop(keeper)
    if resolver is not None:
        save_addresses(resolver)
    loader: Any = sys.modules.get("headwater_board.loader")
    if loader is not None and not keeper.connections:
        # A version on trial has done its work. ESP32 tells so after the sleep, RP2 does not.
        loader.mark_offline()
    if boots is not None and not hasattr(machine, "DEEPSLEEP_RESET"):
        boots.note("deep sleep")
    print("awake", (ticks_ms() - _woke) & _TICKS_MASK, "ms,", waiting, "unacknowledged")
    machine.deepsleep(sleep_ms)


def check(ms: int) -> None:
    """Raise ValueError for a deep sleep that is too long for the port."""
    import machine

    limit = _LIMIT_MS if hasattr(machine, "DEEPSLEEP_RESET") else EMULATED_LIMIT_MS
    if ms > limit:
        raise ValueError("%d ms: this port sleeps at most %d ms" % (ms, limit))


def nap(keeper: "Any", ms: int) -> None:
    """Disconnect, switch the interface off, light-sleep for ``ms`` milliseconds, and start the keeper again.

    A Pico W with MicroPython 1.24 or newer returns early from each light sleep while WiFi is on.
    """
    import machine

    begin = ticks_ms()
    _stop(keeper)
    left = ms - ((ticks_ms() - begin) & _TICKS_MASK)
    while left > 0:
        machine.lightsleep(left)
        left = ms - ((ticks_ms() - begin) & _TICKS_MASK)
    keeper.start()


def _stop(keeper: "Any") -> None:
    """Disconnect, sync the outbox, and switch the interface off."""
    keeper.stop()
    outbox = keeper.client.session.outbox
    if hasattr(outbox, "sync"):
        outbox.sync()
    if keeper.network is not None:
        sleep_ms(_GOODBYE_MS)
        keeper.network.stop()


def load_addresses(path: str = "/headwater-addresses.json") -> "dict[str, list[str]]":
    """Return the addresses that ``save_addresses`` has stored, for ``Resolver(addresses=...)``."""
    try:
        with open(path) as file:
            addresses: dict[str, list[str]] = json.load(file)
            return addresses
    except (OSError, ValueError):
        return {}


def save_addresses(resolver: "Resolver", path: str = "/headwater-addresses.json") -> None:
    """Store the addresses that ``resolver`` knows, unless they are stored."""
    if resolver.addresses != load_addresses(path):
        try:
            with open(path, "w") as file:
                json.dump(resolver.addresses, file)
        except OSError:
            # The next start asks for them; a board with a full flash must sleep all the same.
            pass
