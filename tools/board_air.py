"""The air around a virtual board: access points, name service and cable, as its host steers them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.device.standins.access_point import NETWORK

_SIZE = 1 << 16

#: A network that `VirtualBoard(port=...)` has by default: SSID and password.
SSID, PASSWORD = "headwater", "correct horse"


class Air:
    """What the board's radio meets. Every change is there at the board's next look at it.

    `tools/device/standins/radio.py` documents the fields. `pace` multiplies every duration of the stand-ins (join,
    DHCP, loss of beacons, DNS time-out); 1.0 is a board's pace.
    """

    def __init__(self, path: Path, networks: Mapping[str, str], pace: float) -> None:
        """Write the first state to `path`. `networks` maps an SSID to its password ("": open)."""
        self._path = path
        self._generation = 0
        self._state: dict[str, Any] = {"networks": {}, "names": {}, "reach": {}}
        self._state.update(pace=pace, dns=True, cable=True)
        self._path.write_bytes(bytes(_SIZE))
        for ssid, password in networks.items():
            self.add(ssid, password)
        self._write()

    def add(self, ssid: str, password: str = "", **more: object) -> None:
        """Switch on an access point."""
        number = len(self._state["networks"]) + 1
        self._state["networks"][ssid] = {
            **NETWORK,
            "password": password,
            "bssid": f"02000000{number:04x}",
            **more,
        }
        self._write()

    def change(self, ssid: str, **more: object) -> None:
        """Change an access point: `up`, `dead`, `password`, `dhcp_ms` (None: never), `rssi`, `refuses`, `reason`."""
        network = self._state["networks"][ssid]
        unknown = set(more) - set(network)
        if unknown:
            raise ValueError(f"{sorted(unknown)}: not a field of a network ({sorted(network)})")
        network.update(more)
        self._write()

    def switch_off(self, ssid: str) -> None:
        """Switch an access point off: its stations notice that beacons are missing."""
        self.change(ssid, up=False)

    def switch_on(self, ssid: str) -> None:
        """Switch it on again, as after a router's restart: it knows no stations."""
        self.change(ssid, up=True, starts=self._state["networks"][ssid]["starts"] + 1)

    def set(self, **more: object) -> None:
        """Change `dns` (whether names are resolved), `pace` or `cable` (of an Ethernet interface)."""
        unknown = set(more) - {"dns", "pace", "cable"}
        if unknown:
            raise ValueError(f"{sorted(unknown)}: not dns, pace or cable")
        self._state.update(more)
        self._write()

    def name(self, name: str, address: str = "127.0.0.1") -> None:
        """Let the board resolve `name` to `address`."""
        self._state["names"][name] = address
        self._write()

    def reach(self, address: str, port: int) -> None:
        """Lead what the board sends to `address` ("192.168.4.1:53") to `port` of this machine."""
        self._state["reach"][address] = port
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._state).encode() + b"\n"
        if len(text) + 4 > _SIZE:
            raise ValueError(f"the air's description is {len(text)} bytes long; {_SIZE - 4} fit")
        self._generation += 1
        with self._path.open("r+b") as file:
            # The generation last: a board that sees it sees the whole text.
            os.pwrite(file.fileno(), text, 4)
            os.pwrite(file.fileno(), self._generation.to_bytes(4, "little"), 0)
