"""Check and encode the arguments of the FMQ client: URLs, stores, wills, tags."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from headwater.fmq.frames import tag_list
from headwater_host.client.fmq.messages import texts
from headwater_host.client.options import SessionOptions
from headwater_host.client.payload import Will, payload_bytes
from headwater_host.errors import ArgumentError
from headwater_host.topics import topic_bytes

if TYPE_CHECKING:
    from os import PathLike

    from headwater_host.client.fmq.store import FmqOutbox

_URL = re.compile(
    r"(fmqs?)://(?:([^/@]*)@)?(?:\[([^\]@]+)\]|([^:/@\[\]\s]+))(?::([0-9]{1,5}))?/?",
)


def split_url(url: str) -> tuple[bool, str, int | None, str | None, str | None]:
    """Split a URL into whether it uses TLS, host, port, user and password. Raises ArgumentError."""
    found = _URL.fullmatch(url)
    port = int(found[5]) if found and found[5] else None
    if not found or (port is not None and not 1 <= port <= 65535):
        # The error does not show the URL, which may contain a password.
        raise ArgumentError("a hub's URL is fmq://[USER[:PASSWORD]@]HOST[:PORT], with TLS fmqs://")
    name, colon, secret = (found[2] or "").partition(":")
    return (
        found[1] == "fmqs",
        found[3] or found[4],
        port,
        unquote(name) or None,
        unquote(secret) if colon else None,
    )


def open_store(options: SessionOptions, identifier: str | None, slots: int) -> "FmqOutbox | None":
    """Return the store of a client. Raises StoreError, and ArgumentError when it belongs to another client."""
    store = options.store
    if store is None:
        return None
    from headwater_host.client.fmq.store import FmqOutbox

    if not identifier:
        raise ArgumentError("a store needs the identifier whose messages it keeps")
    if not isinstance(store, FmqOutbox):
        # FmqOutbox refuses a store of MQTT, because it is no path.
        return FmqOutbox(cast("str | PathLike[str]", store), identifier, slots=slots)
    if store.identifier != identifier:
        raise ArgumentError(f"the store is of the client {store.identifier!r}")
    return store


def will_size(will: Will | None) -> int:
    """Return the size of a will in AUTH. Raises ArgumentError."""
    if will is None:
        return 0
    if not isinstance(will, Will):
        raise ArgumentError(f"will={will!r}: a Will, such as Will(topic, payload)")
    if will.properties:
        raise ArgumentError("a will has no properties in FMQ")
    return len(topic_bytes(will.topic)) + len(payload_bytes(will.payload))


def encoded_tags(tags: Sequence[str]) -> bytes | None:
    """Return the encoded tags of a message, or None. Raises ArgumentError."""
    return tag_list([text_bytes(tag) for tag in texts(tags)]) if tags else None


def text_bytes(value: str) -> bytes:
    """Return a text in UTF-8. Raises ArgumentError."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{value!r} cannot be written in UTF-8") from None
    except AttributeError:
        raise ArgumentError(f"a text is needed, not {type(value).__name__}") from None
