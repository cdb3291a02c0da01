"""Addresses of hubs as text, and in the name of a lease's holder."""

from headwater_host.fmq.address import Address


def address_of(holder: str) -> str:
    """Return the address in the name of a holder: ``HOST:PORT IP RUN``."""
    return holder.partition(" ")[0]


def ip_address_of(holder: str) -> Address:
    """Return the IP address and the port in the name of a holder."""
    address, ip, _ = holder.split(" ")
    return ip, split_address(address)[1]


def split_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` or ``[HOST]:PORT``. Raises ValueError."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
