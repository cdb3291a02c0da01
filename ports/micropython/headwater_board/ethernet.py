"""Ethernet, and interfaces that the program has connected itself: as networks of a keeper, like ``wifi``.

ethernet = Ethernet(network.LAN(mdc=..., mdio=..., phy_type=..., phy_addr=0))     # ESP32
ethernet = Ethernet(network.WIZNET5K(spi, cs, reset))                             # RP2
keeper = Keeper(client, network=ethernet)
"""

from headwater_board.interface import Interface

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    machine: Any

# The keys of the settings that are pins.
_PINS = ("mdc", "mdio", "ref_clk", "power", "reset", "sck", "mosi", "miso", "cs", "int")


def make_nic(ethernet: "dict[str, Any]") -> "Any":
    """Return the interface that the table ``ethernet`` of the settings describes.

    Raises ValueError if the firmware does not have the chip's driver, or refuses a pin; OSError if the chip does not
    answer.
    """
    import machine
    import network

    module: Any = network
    chip = ethernet["chip"]
    if not hasattr(module, "WIZNET5K" if chip == "WIZNET5K" else "PHY_" + chip):
        raise ValueError("chip is %s, which this firmware does not have" % chip)
    pins: dict[str, Any] = {key: machine.Pin(ethernet[key]) for key in _PINS if ethernet[key] is not None}
    if ethernet["spi"] is not None:
        lines = {key: pins.pop(key) for key in ("sck", "mosi", "miso")}
        pins["spi"] = machine.SPI(ethernet["spi"], **lines)
    if chip == "WIZNET5K":
        return module.WIZNET5K(*[pins[key] for key in ("spi", "cs", "reset", "int") if key in pins])
    if ethernet["ref_clk_mode"] != "default":
        pins["ref_clk_mode"] = machine.Pin.OUT if ethernet["ref_clk_mode"] == "out" else machine.Pin.IN
    return module.LAN(phy_type=getattr(module, "PHY_" + chip), phy_addr=ethernet["phy_addr"], **pins)


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
