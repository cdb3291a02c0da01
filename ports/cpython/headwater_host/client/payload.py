"""Payloads and wills."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater_host.errors import ArgumentError

#: A payload: None is empty, text is sent in UTF-8, numbers as decimal text.
Payload = bytes | bytearray | memoryview | str | int | float | None


def payload_bytes(payload: Payload) -> bytes | bytearray | memoryview:
    """Return the bytes of a payload. Raises ArgumentError for anything else."""
    if payload is None:
        return b""
    if isinstance(payload, bytes | bytearray):
        return payload
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError("the payload cannot be written in UTF-8") from error
    if isinstance(payload, int | float):
        return str(payload).encode()
    if isinstance(payload, memoryview):
        return payload.cast("B") if payload.contiguous else payload.tobytes()
    raise ArgumentError(
        f"a payload is bytes, text, a number or None, not {type(payload).__name__}: encode it first"
    )


@dataclass(frozen=True)
class Will:
    """The message that the server publishes if the client disconnects unexpectedly (MQTT 3.1.1, 3.1.2.5).

    ``properties`` (``headwater_host.mqtt_properties``) are those of MQTT 5.0, section 3.1.3.2, such as
    ``will_delay_interval``.
    """

    topic: str
    payload: Payload = None
    qos: int = 0
    retain: bool = False
    properties: Mapping[str, Any] | None = None
