"""Serial ports with boards, found by their USB identifiers."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from serial.tools import list_ports
from serial.tools.list_ports_common import ListPortInfo

from headwater_host.board.errors import BoardError
from headwater_host.exits import CONNECTION, USAGE

#: (vendor, product; None: any other): what is at such a port; "": no board. From MICROPY_HW_USB_VID and _PID in
#: MicroPython's ports/esp32 and ports/rp2/boards, and for the bridges on ESP32 boards from linux-usb.org/usb.ids.
_BOARDS: dict[tuple[int, int | None], str] = {
    (0x2E8A, 0x0004): "",  # Picoprobe
    (0x2E8A, 0x000C): "",  # Debug Probe
    (0x2E8A, None): "RP2 with MicroPython",
    (0x303A, 0x1001): "ESP32, USB serial/JTAG",
    (0x303A, None): "ESP32 with MicroPython, native USB",
    (0xF055, None): "MicroPython, native USB",
    (0x239A, None): "Adafruit board",
    (0x2341, None): "Arduino board",
    (0x1B4F, None): "SparkFun board",
    (0x10C4, 0xEA60): "ESP32 behind a CP210x bridge",
    (0x10C4, 0xEA70): "ESP32 behind a CP2105 bridge",
    (0x1A86, 0x7522): "ESP32 behind a CH340 bridge",
    (0x1A86, 0x7523): "ESP32 behind a CH340 bridge",
    (0x1A86, 0x55D3): "ESP32 behind a CH343 bridge",
    (0x1A86, 0x55D4): "ESP32 behind a CH9102 bridge",
    (0x0403, 0x6001): "ESP32 behind an FT232R bridge",
    (0x0403, 0x6010): "ESP32 behind an FT2232 bridge",
    (0x0403, 0x6015): "ESP32 behind an FT231X bridge",
    (0x067B, 0x2303): "ESP32 behind a PL2303 bridge",
}
#: A Pico that waits for firmware: a drive, no serial port.
_BOOTSEL = ("2e8a", {"0003", "000f"})
_CONNECT = "connect one with a USB cable that carries data, or name its port with --port"
_USB = Path("/sys/bus/usb/devices")


class Found(NamedTuple):
    """A serial port: its path, what is connected, and the USB serial number."""

    port: str
    what: str
    serial: str


def boards(ports: Iterable[ListPortInfo] | None = None) -> list[Found]:
    """Return the serial ports that have a board's USB identifiers."""
    found = []
    for port in sorted(list_ports.comports()) if ports is None else ports:
        if port.vid is None:
            continue
        what = _BOARDS.get((port.vid, port.pid), _BOARDS.get((port.vid, None)))
        if what:
            text = f"{what} ({port.product})" if port.product else what
            found.append(Found(port.device, text, port.serial_number or ""))
    return found


def none() -> BoardError:
    """Return the error for no board."""
    return BoardError(f"no board found: {_bootsel() or _CONNECT}", CONNECTION)


def choose(wanted: str | None, found: Iterable[Found] | None = None) -> str:
    """Return the port to use: `wanted`, a path or a USB serial number, or that of the only board."""
    known = boards() if found is None else list(found)
    if wanted is not None:
        # Bridges of one type may all have the same serial number.
        known = [one for one in known if wanted == one.serial]
        if not known:
            return wanted
    if not known:
        raise none()
    if len(known) > 1:
        having = f" with the serial number {wanted}" if wanted else ""
        raise BoardError(f"there are {len(known)} boards{having}; name one with {_choices(known)}", USAGE)
    return known[0].port


def _choices(found: Iterable[Found]) -> str:
    """Return the option for each of these boards."""
    return " or ".join(
        f"--port {one.port} ({one.what}{f', {one.serial}' * bool(one.serial)})" for one in found
    )


def _bootsel(devices: Path = _USB) -> str:
    for device in devices.glob("*"):
        try:
            identifiers = [(device / name).read_text().strip() for name in ("idVendor", "idProduct")]
        except OSError:
            continue
        if identifiers[0] == _BOOTSEL[0] and identifiers[1] in _BOOTSEL[1]:
            return "a Pico waits for firmware: copy MicroPython's .uf2 file to its drive"
    return ""
