"""Remote procedure calls, and CONSUME with ONCE (docs/protocols/fmq.md, section 4).

    calls = Calls(client)
    client.session.on_result = lambda frame: print(client.session.source, frame.payload_bytes())
    calls.call(b"sum", b"1 2")

    client.session.on_call = lambda frame: calls.reply(frame, answer(frame.payload_bytes()))

The functions are for a session without a client; ``out`` sends the frames. Calls allocate.
"""

from headwater.connection import NO_TOPIC, send_out, send_request
from headwater.errors import E_AGAIN, E_ARGUMENT, E_OFFLINE, E_TOO_LARGE
from headwater.fmq.frames import (
    Frame,
    check_filter,
    check_name,
    encode_frame,
    length_size,
    message_size,
    put_head,
    put_length,
)
from headwater.fmq.queues import find_request
from headwater.fmq.session import CALL, is_query, refused
from headwater.fmq.values import put_text
from headwater.wire import NOT_BYTES, const, is_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.fmq.client import Client
    from headwater.fmq.session import ClientSession
    from headwater.types import Bytes

_ONLINE = const(2)
_PUBLISH = const(3)
_CONSUME = const(10)
_ACK = const(14)
_ONCE = const(2)
_NO_TAGS = const(0xD0)
_REPLY = b"$rpc/reply"


class Calls:
    """Calls over a client, sent at once.

    Results are passed to ``session.on_result(frame)``, with the number of the call in ``session.source``; calls of
    other clients to ``session.on_call(frame)``.
    """

    def __init__(self, client: "Client"):
        self._client = client

    def call(self, topic: "Bytes", arguments: "Bytes" = b"") -> int:
        """Call the responder of ``$rpc/TOPIC``. Return the number of the call, or an error."""
        return send_request(self._client, call(self._client.session, topic, arguments))

    def reply(self, call: "Frame | Bytes", result: "Bytes") -> int:
        """Answer a call. Return 0 or an error of ``publish`` at QoS 0."""
        client = self._client
        status = reply(client.session, call, result)
        if status == E_AGAIN and send_out(client) == 0:
            status = reply(client.session, call, result)
        return send_request(client, status)

    def refuse(self, call: "Frame | Bytes", code: int, text: "Bytes" = b"") -> int:
        """Refuse a call. Return 0 or an error."""
        return send_request(self._client, refuse(self._client.session, call, code, text))


def call(session: "ClientSession", topic: "Bytes", arguments: "Bytes" = b"") -> int:
    """Call the responder of ``$rpc/TOPIC``. Return the number of the call, or an error of ``consume_once``.

    ``on_answer`` gets reason code 0x10 if there is no responder, 0x83 if there was no result.
    """
    return refused(check_name, topic) or consume_once(session, topic, arguments=arguments)


def consume_once(
    session: "ClientSession",
    topic: "Bytes",
    tags: "Sequence[Bytes]" = (),
    condition: "Bytes" = b"",
    group: "Bytes" = b"",
    need_ack: bool = False,
    arguments: "Bytes" = b"",
) -> int:
    """Request one message (CONSUME with ONCE). Return the number of the request, or an error of ``subscribe``.

    The message is passed to ``on_result``, with this number as ``source``; without one, ``on_answer`` gets the reason.
    """
    if not is_query(tags, condition, group) or not is_bytes(arguments):
        return E_ARGUMENT
    bad = refused(check_filter, topic)
    if bad:
        return bad
    session.find_request = find_request
    n = session.request(
        _CONSUME << 4 | _ONCE | (1 if need_ack else 0),
        (topic, tags, condition, group, arguments),
        CALL,
    )
    if n > 0 and need_ack:
        session.requests.more[session.requests.place(n)] = 1
    return n


def reply(session: "ClientSession", call: "Frame | Bytes", result: "Bytes") -> int:
    """Answer a call, by its frame while that is valid, or by its id. Errors are those of ``publish`` at QoS 0."""
    if session.state != _ONLINE:
        return E_OFFLINE
    try:
        if isinstance(call, Frame):
            return _reply(session, call.buf, call.id_at, call.id_end, result)
        return _reply(session, call, 0, len(call), result)
    except NOT_BYTES:
        return E_ARGUMENT


def refuse(session: "ClientSession", call: "Frame | Bytes", code: int, text: "Bytes" = b"") -> int:
    """Refuse a call with a reason code of 128 to 255 and a text in UTF-8. Errors are those of ``reply``."""
    if session.state != _ONLINE:
        return E_OFFLINE
    if not 128 <= code < 256 or not is_bytes(text):
        return E_ARGUMENT
    try:
        ident = bytes(call.buf[call.id_at : call.id_end]) if isinstance(call, Frame) else call
        return session.queue_packet(
            encode_frame(session.tx, session.tx_end, session.tx_size, _ACK << 4, ident, (code, text))
        )
    except NOT_BYTES:
        return E_ARGUMENT


def _reply(s: "ClientSession", buf: "Bytes", at: int, end: int, result: "Bytes") -> int:
    """Publish the id of the call, ``buf[at:end]``, and the result to ``$rpc/reply``."""
    n = message_size(_REPLY, result) + end - at
    size = 1 + len(s.ids.ident) + length_size(n) + n
    if size > s.tx_size - s.tx_end:
        return E_AGAIN if size <= len(s.tx) else E_TOO_LARGE
    # This overwrites the prepared frame.
    s.ready = NO_TOPIC
    to = put_head(s.tx, s.tx_end, _PUBLISH << 4, s.ids.next(_PUBLISH, s.now))
    to = put_text(s.tx, put_length(s.tx, to, n), len(s.tx), _REPLY)
    s.tx[to] = _NO_TAGS
    to += 1
    while at < end:
        s.tx[to] = buf[at]
        to += 1
        at += 1
    s.tx[to : to + len(result)] = result
    s.tx_end += size
    return 0
