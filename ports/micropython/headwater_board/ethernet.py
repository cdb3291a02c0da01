"""Ethernet, and interfaces that the program has connected itself: as networks of a keeper, like ``wifi``.

ethernet = Ethernet(network.LAN(mdc=..., mdio=..., phy_type=..., phy_addr=0))     # ESP32
ethernet = Ethernet(network.WIZNET5K(spi, cs, reset))                             # RP2
keeper = Keeper(client, network=ethernet)
"""

from headwater_board.interface import Interface

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Ethernet(Interface):
    """Keeps a wired interface ``nic`` up. Its options are those of ``Interface``."""

    def _connect(self) -> None:
        if self.address is None:
            # Unlike ``ifconfig("dhcp")``, this does not wait for an address.
            self.nic.ipconfig(dhcp4=True)

    def _is_over(self, passed: int) -> bool:
        self.status = self.nic.status()
        return False


class Connected:
    """An interface that the program brings up itself: ``nic``, or whatever there is if that is None."""

    def __init__(self, nic: "Any" = None):
        self.nic = nic

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def poll(self, busy: bool = True) -> bool:
        """Return whether the interface is connected."""
        return self.nic is None or self.nic.isconnected()

    def failed(self, status: int, number: int = 0) -> None:
        """Do nothing."""

    def works(self) -> None:
        """Do nothing."""
