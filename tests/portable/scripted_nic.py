"""``network`` with a station that answers what a test says, and writes down what it is told; and the time."""

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ESP32 = 1010
RP2 = 3


class Nic:
    """``calls``: what it was told. ``breaks``: the calls that raise."""

    PM_NONE = 0
    PM_POWERSAVE = 2

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.breaks: set[str] = set()
        self.is_active = self.connected = self.associated = False
        self.code = 0

    def _told(self, name: str, *values: object) -> None:
        if name in self.breaks:
            raise OSError("Wifi Internal Error")
        self.calls.append((name,) + values)

    def active(self, on: "bool | None" = None) -> bool:
        if on is not None:
            self._told("active", on)
            self.is_active = on
            self.connected = False
        return self.is_active

    def connect(self, ssid: str, password: "str | None", bssid: "bytes | None" = None, **more: int) -> None:
        self._told("connect", ssid, password, bssid, *more.values())

    def disconnect(self) -> None:
        self._told("disconnect")
        self.connected = False

    def isconnected(self) -> bool:
        return self.connected

    def status(self, what: str = "") -> int:
        if what == "rssi" and not self.associated:
            raise OSError("Wifi Not Connected")
        return self.code

    def ifconfig(self, address: "tuple[str, str, str, str]") -> None:
        self._told("ifconfig", address)

    def ipconfig(self, dhcp4: bool) -> None:
        self._told("dhcp4", dhcp4)

    def config(self, **values: object) -> None:
        for name, value in values.items():
            self._told(name, value)

    def said(self) -> "list[Any]":
        """What it was told since the last time."""
        calls, self.calls = self.calls, []
        return calls


class Network:
    """The module."""

    STAT_GOT_IP = ESP32
    nic = Nic()
    told: "list[str]" = []

    @classmethod
    def WLAN(cls) -> Nic:  # noqa: N802 - as in the module
        return cls.nic

    @classmethod
    def country(cls, code: str) -> None:
        if len(code) != 2:
            raise ValueError
        cls.told.append(code)

    @classmethod
    def hostname(cls, name: str) -> None:
        cls.told.append(name)


sys.modules["network"] = Network  # type: ignore[assignment]
if not hasattr(time, "ticks_ms"):
    time.ticks_ms = lambda: 0  # type: ignore[attr-defined]
