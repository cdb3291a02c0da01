"""Encode and decode the address of a hub (docs/protocols/fmq.md, section 3)."""

from ipaddress import ip_address

from headwater_host.errors import ArgumentError

Address = tuple[str, int]


def encode(address: Address) -> bytes:
    """Return the bytes of an IP address and a port. Raises ArgumentError."""
    host, port = address
    try:
        ip = ip_address(host)
    except ValueError:
        raise ArgumentError(f"{host!r} is not an IP address") from None
    if not 0 <= port <= 65535:
        raise ArgumentError(f"{port} is not a port")
    number = int(ip)
    n = (number.bit_length() + 7) // 8 or 1
    return bytes((ip.version << 4 | n & 15,)) + number.to_bytes(n, "little") + port.to_bytes(2, "little")


def decode(data: bytes, at: int) -> tuple[Address, int]:
    """The address at ``at``, which ``headwater.fmq.frames`` has checked, and where it ends."""
    version, n = data[at] >> 4, data[at] & 15 or 16
    at += 1
    ip = ip_address(int.from_bytes(data[at : at + n], "little").to_bytes(4 if version == 4 else 16, "big"))
    return (str(ip), int.from_bytes(data[at + n : at + n + 2], "little")), at + n + 2


def decode_all(data: bytes, at: int) -> list[Address]:
    """Return all addresses from ``at`` on."""
    found = []
    while at < len(data):
        address, at = decode(data, at)
        found.append(address)
    return found
