"""WiFi of ESP32 and RP2 (Pico W): connects and reconnects without blocking.

    wifi = Wifi([("home", "password"), ("phone", "password")], country="DE", hostname="board-1")
    keeper = Keeper(Client(Tcp("broker.local"), b"board-1", clean_start=False), network=wifi)
    keeper.start()
    while True:
        keeper.wait(1000)

The keeper owns WiFi and session; without a keeper, a program calls ``start`` and ``poll`` itself. How it recovers:
``headwater_board.interface``. What the ports' status codes mean: docs/wifi.md.
"""

import network

from headwater_board.interface import CONNECTING as CONNECTING
from headwater_board.interface import OFF as OFF
from headwater_board.interface import PAUSE as PAUSE
from headwater_board.interface import STARTING as STARTING
from headwater_board.interface import UP as UP
from headwater_board.interface import Interface

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

# By the value of STAT_GOT_IP, which tells the ports apart: the status codes of an attempt in progress; whether the
# status shows the reason of an earlier failure until there is an address; and settings of the port alone. An ESP32
# reports IDLE for a moment between CONNECTING and GOT_IP, and its driver retries for ever unless ``reconnects`` is set.
_PORTS: "dict[int, tuple[tuple[int, ...], bool, dict[str, int]]]" = {
    1010: ((1000, 1001, 1010), True, {"reconnects": 0}),
    3: ((1, 2, 3), False, {}),
}
# How long a failure must show: an RP2 can report "wrong password" and go on to connect. An ESP32 that shows the reason
# of an earlier failure would have found its access point within the longer time.
_FAILED_MS = 1000
_LONGEST_HOSTNAME = 32
# How long every keeper must be idle before the radio may sleep.
_IDLE_MS = 1000
_STALE_MS = 5000


class Wifi(Interface):
    """Keeps the station interface connected to the first of ``networks`` that can be reached.

    - ``networks``: ``(ssid, password)``, ``(ssid, password, bssid)`` or ``(ssid, password, bssid, security)`` in the
      order of trying; an open network has the password None. After a loss, the network that worked last is tried first.
      ``security``, such as ``network.WLAN.SEC_WPA3``, is for RP2, which joins with WPA2 without it; ESP32 ignores it.
    - ``country``: two letters; they choose the channels. ``hostname``: for DHCP and mDNS.
    - ``tx_power``: maximum transmit power in dBm.
    - ``power_save``: let the radio sleep once no keeper was busy for a second; receiving then takes
      longer. False: never. None: leave the driver's setting, which Bluetooth on an ESP32 needs.
    - ``options``: ``address``, ``connect_ms``, the limits and ``reset`` of ``Interface``.

    Raises ValueError without a network, for a password that WPA does not allow, and for a country or hostname of the
    wrong length.
    """

    def __init__(
        self,
        networks: "Sequence[Sequence[Any]]",
        country: "str | None" = None,
        hostname: "str | None" = None,
        tx_power: "int | None" = None,
        power_save: "bool | None" = False,
        **options: "Any",
    ):
        if not networks:
            raise ValueError("networks: at least one (ssid, password)")
        for one in networks:
            # The driver of an ESP32 refuses others with an OSError, which is no reason for a reset.
            if one[1] is not None and not 8 <= len(one[1]) <= 64:
                raise ValueError(f"networks: the password of {one[0]} has 8 to 64 characters, or is None")
        # The ports refuse them with a ValueError that has no text.
        if country is not None and len(country) != 2:
            raise ValueError("country: %s has not two letters" % country)
        if hostname is not None and not 0 < len(hostname) <= _LONGEST_HOSTNAME:
            raise ValueError("hostname: %s has not 1 to 32 characters" % hostname)
        super().__init__(network.WLAN(), **options)
        self.networks = networks
        self.choices = len(networks)
        self.country = country
        self.hostname = hostname
        self.tx_power = tx_power
        self.power_save = power_save
        self._progress, self._sticks, self._settings = _PORTS[network.STAT_GOT_IP]
        # What the status was before the attempt, on an RP2 before this poll; and when it last was no failure, from the
        # beginning of the attempt on.
        self._before = self._good_at = 0
        self._idle = False
        self._busy_at = 0

    @property
    def reason(self) -> str:
        """``status`` as text."""
        # Imported here: most programs never ask.
        from headwater_board.wifi_reasons import REASONS

        return REASONS.get(self.status) or f"reason {self.status}"

    def start(self) -> None:
        """Bring WiFi up, at the next ``poll``; harmless while it runs."""
        if self.country is not None:
            network.country(self.country)
        if self.hostname is not None:
            network.hostname(self.hostname)
        super().start()

    def _configure(self) -> None:
        # It can do without these, with its driver's own.
        try:
            if self._settings:
                self.nic.config(**self._settings)
            if self.tx_power is not None:
                self.nic.config(txpower=self.tx_power)
        except (OSError, RuntimeError) as e:
            self.error = e
        if self.power_save is not None:
            self._set_power(self.nic.PM_NONE)
        self._idle = False
        self._busy_at = self.ticks_ms()

    def _connect(self) -> None:
        ssid, password, *more = self.networks[self._at]
        self._before = self.nic.status() if self._sticks else 0
        self._good_at = 0
        options = {}
        if more and more[0] is not None:
            options["bssid"] = more[0]
        if len(more) > 1 and more[1] is not None and not self._sticks:
            options["security"] = more[1]
        self.nic.connect(ssid, password, **options)

    def _disconnect(self) -> None:
        self.nic.disconnect()

    def _is_over(self, passed: int) -> bool:
        status = self.status = self.nic.status()
        if status in self._progress:
            self._good_at = passed
            if self._sticks:
                return False
            # An RP2 that had joined and shows "connecting" has lost its access point, and does nothing about it.
            lost: bool = status < self._before
            self._before = status
            return lost
        limit = _STALE_MS if self._sticks and status == self._before else _FAILED_MS
        return passed - self._good_at >= limit and not (self._sticks and self._is_associated())

    def _is_associated(self) -> bool:
        try:
            self.nic.status("rssi")
        except (OSError, RuntimeError):
            return False
        return True

    def _save(self, idle: bool) -> None:
        if not self.power_save:
            return
        if not idle:
            self._busy_at = self.ticks_ms()
        elif self._passed(self._busy_at) < _IDLE_MS:
            return
        if idle != self._idle:
            self._idle = idle
            self._set_power(self.nic.PM_POWERSAVE if idle else self.nic.PM_NONE)

    def _set_power(self, mode: int) -> None:
        try:
            self.nic.config(pm=mode)
        except (OSError, RuntimeError) as e:
            self.error = e
