"""Check arguments of the clients. An error names the argument, its value, and what is allowed."""

from collections.abc import Iterable

from headwater_host.errors import ArgumentError

_LONGEST_STRING = 65535


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise ArgumentError for anything but a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ArgumentError(f"{name}={value!r}: a whole number from {least} to {most}")


def check_seconds(name: str, value: object) -> None:
    """Raise ArgumentError for anything but a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ArgumentError(f"{name}={value!r}: a number of seconds above 0")


def seconds_of(value: object, default: float) -> float:
    """Return the timeout of a call, ``default`` for None. Raises ArgumentError for anything but a number."""
    if value is None:
        return default
    # NaN is not equal to itself.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise ArgumentError(f"timeout={value!r}: a number of seconds")
    return value


def servers_of(host: object, port: object, more: object) -> list[tuple[str, int | None]]:
    """Return all servers as hosts with a port or None. Raises ArgumentError."""
    if isinstance(more, str) or not isinstance(more, Iterable):
        raise ArgumentError(f"more_servers={more!r}: a list of hosts with their ports")
    found: list[tuple[str, int | None]] = []
    for server in [(host, port), *more]:
        pair = (server, None) if isinstance(server, str) else server
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentError(f"more_servers: {server!r} is not a host with its port")
        name, number = pair
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"host {name!r}: a name or an address")
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535
        ):
            raise ArgumentError(f"port {number!r}: a whole number from 1 to 65535")
        found.append((name[1:-1] if name[0] + name[-1] == "[]" else name, number))
    return found


def string_field(what: str, value: str | bytes | None) -> bytes | None:
    """Return a string of the handshake in UTF-8: at most 65535 bytes (MQTT 3.1.1, 1.5.3). Raises ArgumentError."""
    try:
        data = value.encode() if isinstance(value, str) else value
        if data is not None and not isinstance(data, bytes):
            # The error does not show the value, which may be a password.
            raise ArgumentError(f"the {what} is text or bytes, not {type(value).__name__}")
    except UnicodeEncodeError:
        raise ArgumentError(f"the {what} cannot be written in UTF-8") from None
    if data is not None and len(data) > _LONGEST_STRING:
        raise ArgumentError(f"the {what} takes more than {_LONGEST_STRING} bytes")
    return data
