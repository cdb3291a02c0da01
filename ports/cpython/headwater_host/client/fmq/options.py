"""Check and encode the arguments of the FMQ client: URLs, tags, texts."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from headwater.fmq.frames import tag_list
from headwater_host.client.fmq.messages import texts
from headwater_host.errors import ArgumentError

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
