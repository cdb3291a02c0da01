"""Errors of the clients.

================================  ==================================================================================
``ClientError``                   the base
``ArgumentError``                 the caller's mistake; nothing was sent
``ReentrantError``                a client was entered twice, or called where the call would wait for itself
``NotConnectedError``             there is no connection
``ConnectRefusedError``           … because the server refused the handshake
``DisconnectedError``             … because the server closed it with a reason code
``ProtocolError``                 … because the server violated the protocol
``TlsError``                      … because TLS failed
``StoreError``                    … because the store cannot be opened or written
``TimedOutError``                 no answer within the timeout
``PublishError``                  the server refused a message
``QueueFullError``                there is no room for a message
``SubscribeError``                the server refused a subscription
``UnsubscribeError``              the server refused to end a subscription
``FmqRequestError``               the hub refused another request
``FmqConsumerError``              the hub ended a consumer
================================  ==================================================================================
"""

from headwater import errors, reasons
from headwater.errors import HeadwaterError
from headwater.names5 import code_name

#: CONNACK's return codes (MQTT 3.1.1, 3.2.2.3).
REFUSALS = {
    1: "the server does not speak this protocol version",
    2: "the server does not allow this client identifier",
    3: "the server is unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
# The server exceeded a limit that the client had announced.
_EXCEEDED = (errors.E_RX_WINDOW, errors.E_RX_TOO_LARGE)


class ClientError(HeadwaterError):
    """The base of all errors of a client. Its text says what is wrong; ``code`` is a status of ``headwater.errors``."""

    def __init__(self, detail: str = "", code: int = errors.E_CLOSED):
        super().__init__(code, detail)

    def __str__(self) -> str:
        return self.detail or reasons.describe(self.code)

    @property
    def reason(self) -> str:
        """The short name of ``code`` (``headwater.reasons``)."""
        return reasons.reason(self.code)


class ArgumentError(ClientError, ValueError):
    """An argument, such as a topic, filter, QoS or payload, is not allowed. Nothing was sent."""

    def __init__(self, detail: str = "", code: int = errors.E_ARGUMENT):
        super().__init__(detail, code)


class ReentrantError(ClientError):
    """The client is in use already, or the call would wait for itself."""

    def __init__(self, detail: str = "", code: int = errors.E_STATE):
        super().__init__(detail, code)


class NotConnectedError(ClientError, ConnectionError):
    """The connection cannot be established or was lost; ``code`` has the reason."""


class TlsError(NotConnectedError):
    """The connection failed because the server's certificate is invalid, or because of another TLS error."""


class ProtocolError(NotConnectedError):
    """The client closed the connection because the server violated the protocol."""


class ConnectRefusedError(NotConnectedError):
    """The server refused CONNECT, or the hub AUTH, with ``return_code`` (MQTT 3.1.1, 3.2.2.3; MQTT 5.0, 3.2.2.2).

    ``reason_string`` is the server's explanation, ``server_reference`` the server to use instead; both may be "".
    """

    def __init__(self, return_code: int, detail: str = "", server_reference: str = ""):
        text = REFUSALS.get(return_code) or _reason(return_code)
        super().__init__(
            f"the server refused the connection: {text}{_behind(detail)}{_instead(server_reference)}",
            errors.E_REFUSED,
        )
        self.return_code = return_code
        self.reason_string = detail
        self.server_reference = server_reference


class DisconnectedError(NotConnectedError):
    """The server closed the connection with ``reason_code`` (MQTT 5.0, 3.14.2.1).

    ``reason_string`` is the server's explanation, ``server_reference`` the server to use instead; both may be "".
    """

    def __init__(self, reason_code: int, detail: str = "", server_reference: str = ""):
        super().__init__(
            f"the server ended the connection: {_reason(reason_code)}{_behind(detail)}{_instead(server_reference)}",
            errors.E_DISCONNECTED,
        )
        self.reason_code = reason_code
        self.reason_string = detail
        self.server_reference = server_reference


class PublishError(ClientError):
    """The server refused a message with ``reason_code`` (MQTT 5.0, 3.4.2.1, 3.5.2.1); it is not retransmitted.

    ``reason_string`` is the server's explanation, or "".
    """

    def __init__(self, reason_code: int, detail: str = ""):
        super().__init__(
            f"the server refused the message: {_reason(reason_code)}{_behind(detail)}", errors.E_REFUSED
        )
        self.reason_code = reason_code
        self.reason_string = detail


class TimedOutError(ClientError, TimeoutError):
    """The server did not answer within the timeout."""

    def __init__(self, detail: str = "", code: int = errors.E_TIMEOUT):
        super().__init__(detail, code)


class QueueFullError(ClientError):
    """The queue is full: an unsent message was refused, or dropped for newer ones (``Limits.when_full``)."""

    def __init__(self, detail: str = "", code: int = errors.E_WINDOW):
        super().__init__(detail, code)


class StoreError(NotConnectedError):
    """The store cannot be opened; or it cannot be written, and the client closed the connection."""

    def __init__(self, detail: str = "", code: int = errors.E_STORE):
        super().__init__(detail, code)


class _FilterError(ClientError):
    """The server refused a request for a filter, the first of those that it refused."""

    _WHAT: str

    def __init__(self, topic: str, reason_code: int = 0x80, detail: str = "", codes: tuple[int, ...] = ()):
        why = "" if reason_code == 0x80 else f": {_reason(reason_code)}"
        super().__init__(f"the server refused {self._WHAT} {topic!r}{why}{_behind(detail)}", errors.E_REFUSED)
        self.topic = topic
        self.reason_code = reason_code
        self.codes = codes or (reason_code,)
        #: The server's explanation (MQTT 5.0, FMQ).
        self.reason_string = detail


class SubscribeError(_FilterError):
    """The server refused a subscription (MQTT 3.1.1 and 5.0, 3.9.3).

    ``topic`` is the filter; ``reason_code`` is 0x80, or a more specific code of MQTT 5.0 or FMQ. ``codes`` are the
    answers to all filters of the request, in their order.
    """

    _WHAT = "the subscription to"


class UnsubscribeError(_FilterError):
    """The server refused to end a subscription (MQTT 5.0, 3.11.3). For the attributes see SubscribeError."""

    _WHAT = "to unsubscribe from"


class FmqRequestError(ClientError):
    """The hub refused a request (docs/protocols/fmq.md, section 4) with ``reason_code``; ``detail`` says why.

    ``what`` names the request in the text, such as "the call of 'sum'".
    """

    def __init__(self, what: str, reason_code: int, why: str = ""):
        super().__init__(f"the hub refused {what}: {_reason(reason_code)}{_behind(why)}", errors.E_REFUSED)
        self.reason_code = reason_code


class FmqConsumerError(FmqRequestError):
    """The hub ended a consumer: ``messages`` raises this after the consumer's messages. ``topic`` is its filter."""

    def __init__(self, topic: str, reason_code: int, why: str = ""):
        super().__init__(f"to go on with consuming {topic!r}", reason_code, why)
        self.topic = topic


def _reason(code: int) -> str:
    return f"{code_name(code, 0).replace('_', ' ')} (0x{code:02x})"


def _instead(server_reference: str) -> str:
    return f" (it names {server_reference})" if server_reference else ""


def _behind(detail: str) -> str:
    return f": {detail}" if detail else ""


def connection_error(
    status: int, detail: str = "", names: dict[int, tuple[str, str]] = reasons.REASONS
) -> NotConnectedError:
    """Return the error for a connection that ended with ``status``.

    ``detail`` is the transport's text; ``names`` are the protocol's names and texts of status codes.
    """
    if errors.blame(status) == errors.PEER or status in _EXCEEDED:
        return ProtocolError(f"the server violated the protocol: {reasons.describe(status, names)}", status)
    if status == errors.E_STORE:
        return StoreError(f"the connection was closed: the store cannot be written: {detail}")
    if status == errors.E_TIMEOUT:
        return NotConnectedError("the connection was closed: the server does not answer", status)
    if status == errors.E_CLOSED:
        return NotConnectedError(f"the connection was lost{_behind(detail)}", status)
    return NotConnectedError(f"the connection was closed: {reasons.describe(status, names)}", status)
