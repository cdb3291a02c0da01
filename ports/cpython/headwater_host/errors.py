"""What the host's client raises: one base, and a class for each thing a program may want to do about it."""

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
# The server has sent more than it was told to.
_EXCEEDED = (errors.E_RX_WINDOW, errors.E_RX_TOO_LARGE)


class MqttError(HeadwaterError):
    """Something about MQTT, or FMQ, went wrong; its text says what. ``code`` is a status of ``headwater.errors``."""

    def __init__(self, detail: str = "", code: int = errors.E_CLOSED):
        super().__init__(code, detail)

    def __str__(self) -> str:
        return self.detail or reasons.describe(self.code)

    @property
    def reason(self) -> str:
        """The short name of ``code`` (``headwater.reasons``)."""
        return reasons.reason(self.code)


class MqttArgumentError(MqttError, ValueError):
    """The caller's fault: a topic, filter, QoS or payload that MQTT does not allow. Nothing was sent."""

    def __init__(self, detail: str = "", code: int = errors.E_ARGUMENT):
        super().__init__(detail, code)


class MqttReentrantError(MqttError):
    """A client was entered twice at a time, or used outside ``async with``."""

    def __init__(self, detail: str = "", code: int = errors.E_STATE):
        super().__init__(detail, code)


class MqttConnectionError(MqttError, ConnectionError):
    """There is no connection: it could not be made, or it was lost. ``code`` says why."""


class MqttTlsError(MqttConnectionError):
    """There is no connection, because the server's certificate does not hold, or TLS failed otherwise."""


class MqttProtocolError(MqttConnectionError):
    """The connection was given up because the server sent what MQTT does not allow."""


class MqttRefusedError(MqttConnectionError):
    """The server answered CONNECT with ``return_code`` (MQTT 3.1.1, 3.2.2.3; MQTT 5.0, 3.2.2.2).

    ``reason_string`` is what it says of it, ``server_reference`` the server that it names instead; "" without.
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


class MqttDisconnectedError(MqttConnectionError):
    """The server ended the connection with ``reason_code`` (MQTT 5.0, 3.14.2.1); for the rest as MqttRefusedError."""

    def __init__(self, reason_code: int, detail: str = "", server_reference: str = ""):
        super().__init__(
            f"the server ended the connection: {_reason(reason_code)}{_behind(detail)}{_instead(server_reference)}",
            errors.E_DISCONNECTED,
        )
        self.reason_code = reason_code
        self.reason_string = detail
        self.server_reference = server_reference


class MqttPublishError(MqttError):
    """The server refused a message with ``reason_code`` (MQTT 5.0, 3.4.2.1, 3.5.2.1); it will not be sent again.

    ``reason_string`` is what it says of it.
    """

    def __init__(self, reason_code: int, detail: str = ""):
        super().__init__(
            f"the server refused the message: {_reason(reason_code)}{_behind(detail)}", errors.E_REFUSED
        )
        self.reason_code = reason_code
        self.reason_string = detail


class MqttTimeoutError(MqttError, TimeoutError):
    """The server did not answer in time."""

    def __init__(self, detail: str = "", code: int = errors.E_TIMEOUT):
        super().__init__(detail, code)


class MqttFullError(MqttError):
    """Too many messages wait: this one was refused, or dropped for newer ones (``Client(when_full=...)``). It was never
    sent."""

    def __init__(self, detail: str = "", code: int = errors.E_WINDOW):
        super().__init__(detail, code)


class MqttStoreError(MqttConnectionError):
    """The file that keeps the session cannot be opened; or it cannot be written, and the connection was given up."""

    def __init__(self, detail: str = "", code: int = errors.E_STORE):
        super().__init__(detail, code)


class _FilterError(MqttError):
    """The server refused a request for a filter, the first of those that it refused."""

    _WHAT: str

    def __init__(self, topic: str, reason_code: int = 0x80, detail: str = "", codes: tuple[int, ...] = ()):
        why = "" if reason_code == 0x80 else f": {_reason(reason_code)}"
        super().__init__(f"the server refused {self._WHAT} {topic!r}{why}{_behind(detail)}", errors.E_REFUSED)
        self.topic = topic
        self.reason_code = reason_code
        self.codes = codes or (reason_code,)
        #: What the server says of it (MQTT 5.0).
        self.reason_string = detail


class MqttSubscribeError(_FilterError):
    """The server refused a subscription (MQTT 3.1.1 and 5.0, 3.9.3).

    ``topic`` is its filter; ``reason_code`` is 0x80, or what MQTT 5.0 has for it. ``codes`` are the answers to all
    filters that were asked for, in their order.
    """

    _WHAT = "the subscription to"


class MqttUnsubscribeError(_FilterError):
    """The server refused to end a subscription (MQTT 5.0, 3.11.3). ``topic``, ``reason_code`` and ``codes`` are as of
    MqttSubscribeError."""

    _WHAT = "to unsubscribe from"


class FmqRequestError(MqttError):
    """The hub refused what was asked for (docs/protocols/fmq.md, section 4): ``reason_code``, and in ``detail`` why.

    ``what`` is the request: "the call of 'sum'".
    """

    def __init__(self, what: str, reason_code: int, why: str = ""):
        super().__init__(f"the hub refused {what}: {_reason(reason_code)}{_behind(why)}", errors.E_REFUSED)
        self.reason_code = reason_code


class FmqConsumerError(FmqRequestError):
    """The hub has ended a consumer: ``messages`` raises it where its messages end. ``topic`` is its filter."""

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
) -> MqttConnectionError:
    """The error for a connection that ended with ``status``; ``detail`` is what the transport said, ``names`` are the
    protocol's for its status codes."""
    if errors.blame(status) == errors.PEER or status in _EXCEEDED:
        return MqttProtocolError(f"the server broke the protocol: {reasons.describe(status, names)}", status)
    if status == errors.E_STORE:
        return MqttStoreError(f"the connection was given up: the store cannot be written: {detail}")
    if status == errors.E_TIMEOUT:
        return MqttConnectionError("the connection was given up: the server does not answer", status)
    if status == errors.E_CLOSED:
        return MqttConnectionError(f"the connection was lost{': ' + detail if detail else ''}", status)
    return MqttConnectionError(f"the connection was given up: {reasons.describe(status, names)}", status)
