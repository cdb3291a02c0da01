"""Contracts between the core and its ports, for type checkers only.

MicroPython has no ``typing``; modules of the core name these classes under ``TYPE_CHECKING``.
"""

from array import array
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

#: The packet or frame of a message.
P = TypeVar("P", contravariant=True)

#: What can be read by index and sliced: the core reads these and allocates none of them.
Bytes = bytes | bytearray | memoryview

#: ``check_name(buf, at, end) -> int``: whether a range is a topic name (``headwater.mqtt.packets``).
NameCheck = Callable[[Bytes, int, int], int]

#: A field of one of IBM MQ's headers, and such a header: ``headwater.ibmmq.chain`` explains them.
Row = tuple[str, int, int, str, int | bytes | None]
Layout = tuple[bytes, int, int, tuple[Row, ...], tuple[int, ...], int]


class Blocks(Protocol):
    """What a packet of MQTT 5.0 decodes beyond ``headwater.mqtt.packets`` (``properties.Packet5``)."""

    props_at: int
    props_end: int

    def block(self, at: int, end: int, where: int = 0) -> int:
        """Check a property block: the offset behind it, or an error."""
        ...

    def publish_block(self, at: int, end: int) -> int:
        """Check PUBLISH's property block: as ``packets.decode_publish``."""
        ...

    def reason(self, at: int) -> int:
        """Decode a reason code and properties at the end of a packet: 0 or an error."""
        ...

    def auth(self, at: int) -> int:
        """Decode the same in AUTH: 0 or an error."""
        ...

    def connack(self, at: int) -> int:
        """Decode CONNACK's reason code and properties: 0 or an error."""
        ...


class Transport(Protocol):
    """A non-blocking byte stream: MicroPython's own stream methods, so that a socket there is one as it
    stands.

    Every method raises OSError when the stream is broken.
    """

    def readinto(self, buf: bytearray | memoryview, n: int, /) -> int | None:
        """Place at most ``n`` bytes at the start of ``buf``.

        Their number, None if none now, 0 if the peer closed.
        """
        ...

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int, /) -> int | None:
        """Take up to ``n`` bytes of ``buf`` from ``off``.

        Their number (it may be less than ``n``), None if none now; 0 while a handshake of the stream's own is under
        way, whose timeout is its own.
        """
        ...

    def close(self) -> None:
        """Release the stream; closing twice is harmless."""
        ...


class Dialer(Protocol):
    """What a port offers to a client: a transport, the time, and a way to wait."""

    def open(self) -> Transport:
        """Open a fresh transport; raises OSError."""
        ...

    def ticks_ms(self) -> int:
        """Milliseconds from anywhere on, wrapping at 2**30 or a multiple of it."""
        ...

    def wait(self, ms: int, /) -> None:
        """Sleep at most ``ms`` milliseconds, less when something arrives."""
        ...


class PollDialer(Dialer, Protocol):
    """A dialer that need not wait for a connection to open. Each of these methods is optional."""

    def ready(self) -> bool:
        """Whether ``open`` will not wait: begins to connect when nothing is under way. Raises OSError.

        Connecting has a time-out of its own (ETIMEDOUT).
        """
        ...

    def hang_up(self) -> None:
        """Forget what was opened last, or is being opened: it will be closed, or never used."""
        ...

    def sleep(self, ms: int, /) -> None:
        """Sleep ``ms`` milliseconds, also when something arrives. A dialer without it is asked to ``wait``."""
        ...


class Network(Protocol):
    """The interface below a connection, for instance WiFi: what a keeper (``headwater.reconnect``) owns with it."""

    def start(self) -> None:
        """Bring the interface up, at the next ``poll``; harmless while it runs. Raises ValueError for a bad setting."""
        ...

    def stop(self) -> None:
        """Take the interface down."""
        ...

    def poll(self, busy: bool = True, /) -> bool:
        """Drive the interface, without blocking: whether it has a link and an address.

        It may save power while it is not ``busy``. Allocates nothing while it is up.
        """
        ...

    def failed(self, status: int, errno: int, /) -> None:
        """A connection over it, or an attempt, has ended with ``status``, and the dialer with ``errno`` (or 0).

        Where nobody has answered, the interface may be restarted.
        """
        ...

    def works(self) -> None:
        """A server has accepted a connection over it."""
        ...


class ReceiveBuffer(Protocol):
    """The part of ``headwater.connection.RxBuf`` that reading from a transport needs."""

    @property
    def view(self) -> bytearray | memoryview:
        """Where ``window`` bytes may be read into."""
        ...

    @property
    def room(self) -> int:
        """What ``window`` has returned."""
        ...

    def window(self) -> int:
        """Prepare ``view`` for a read. Return how many bytes may be read into it."""
        ...


class Session(Protocol):
    """What ``headwater.connection`` drives: the client's session of a protocol. It does no I/O and knows no clock."""

    state: int
    outbox: "Outbox"
    now: int
    rx_time: int
    tx_time: int
    tx: bytearray
    tx_end: int
    out_buf: Bytes
    out_at: int
    out_n: int
    stalled: bool
    feeding: bool
    session_present: bool
    pinged: bool
    on_message: Any
    on_delivered: Callable[[int], object] | None

    @property
    def rx(self) -> ReceiveBuffer:
        """The receive buffer."""
        ...

    def connect(self, now_ms: int, /) -> int:
        """A transport is there: 0, or why the greeting cannot be built."""
        ...

    def disconnect(self) -> int:
        """Queue the last packet."""
        ...

    def lost(self) -> None:
        """The transport is gone."""
        ...

    def poll(self, now_ms: int, /) -> int:
        """Tell the time: 0, or the status of a broken connection."""
        ...

    def ping(self) -> int:
        """Queue a ping: 0 or E_AGAIN."""
        ...

    def awaits(self) -> bool:
        """Whether an acknowledgement or an answer is due."""
        ...

    def out(self) -> int:
        """How many bytes are to be sent now, from ``out_buf[out_at]`` on; or a status."""
        ...

    def sent(self, k: int, /) -> int:
        """So many were taken: what ``out`` offers now."""
        ...

    def enqueue(self, topic: Bytes, payload: Bytes, flags: int, extra: Bytes = ..., /) -> int:
        """Put a message into the outbox or the transmit buffer: its number, 0 at QoS 0, or an error."""
        ...

    def feed(self, n: int, /) -> int:
        """Take ``n`` bytes, just read into ``rx.view``: 0, or the error that broke the connection."""
        ...


class Sink(Protocol[P]):
    """Takes a message that is larger than the receive buffer, of MQTT (``Sink[Packet]``) or FMQ (``Sink[Frame]``)."""

    def open(self, packet: P, size: int, /) -> bool:
        """Begin a message with ``size`` bytes of payload. Return False to skip it.

        ``packet`` has the message's topic, flags and packet identifier. It is valid until this returns.
        """
        ...

    def write(self, buf: Bytes, at: int, n: int, /) -> object:
        """Take the next ``n`` bytes of the payload, at ``buf[at]``. An exception ends the message, unacknowledged."""
        ...

    def close(self, complete: bool, /) -> object:
        """End the message. Discard it unless it is ``complete``: the connection was lost."""
        ...


class JournalFile(Protocol):
    """The file of a ``headwater.journal``, and its successor while that is written. Every method may raise OSError."""

    def load(self) -> bytearray | None:
        """What the file holds, None when there is none; ``write`` then goes on at its end."""
        ...

    def write(self, buf: Bytes, at: int, n: int, /) -> object:
        """Append ``buf[at : at + n]``: all of it, or OSError."""
        ...

    def sync(self) -> object:
        """What was written outlives a power cut."""
        ...

    def begin(self) -> object:
        """Begin an empty successor, which ``write`` then goes to; what was begun before is thrown away."""
        ...

    def replace(self) -> object:
        """Sync the successor and put it into the file's place, at once: a power cut leaves one or the other."""
        ...

    def set_aside(self) -> object:
        """Put the file where somebody can look at it, because it is no journal."""
        ...

    def close(self) -> object:
        """Give the file back; closing twice is harmless."""
        ...


class ReceivedIds(Protocol):
    """The ids of the QoS 2 messages that were taken and wait for PUBREL, kept where a power cut does not reach."""

    #: Those that were open when the store was; 0 is none.
    ids: "array[int]"

    def opened(self, packet_id: int, /) -> int:
        """A message is the application's: 0, and PUBREC may leave; or E_STORE. Opening twice is harmless."""
        ...

    def closed(self, packet_id: int, /) -> int:
        """PUBREL has come (0: the session was lost, and every id with it): 0, and PUBCOMP may leave; or E_STORE."""
        ...


class Outbox(Protocol):
    """What holds the unacknowledged messages; see ``headwater.connection`` for the meaning of each member.

    What returns a status returns E_STORE when a store cannot keep what it is told. ``commit`` has then made no entry,
    ``set`` to REL has changed nothing, and ``set`` to DONE is kept until the store takes it.
    """

    buf: bytearray
    slots: int
    head: int
    count: int
    next: int
    reserved: int
    fresh: bool
    state: bytearray
    at: "array[int]"
    size: "array[int]"
    received: "ReceivedIds | None"

    def reserve(self, n: int, /) -> int:
        """Where the next packet of ``n`` bytes may be built, or -1."""
        ...

    def commit(self, n: int, state: int, /) -> int:
        """Make the packet built at the reserved offset an entry: its index; or E_STORE."""
        ...

    def find(self, packet_id: int, /) -> int:
        """The index of the unacknowledged entry with this id, or -1."""
        ...

    def set(self, i: int, state: int, /) -> int:
        """Change an entry's delivery state: 0, or E_STORE."""
        ...

    def settle(self) -> int:
        """The other end holds nothing of an earlier life any more: 0, or E_STORE."""
        ...

    def clear(self) -> None:
        """Forget every entry."""
        ...
