"""Contracts between the core and its ports, for type checkers only.

MicroPython has no ``typing``; modules of the core name these classes under ``TYPE_CHECKING``.
"""

from array import array
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

#: The packet or frame of a message.
P = TypeVar("P", contravariant=True)

#: Anything that can be indexed and sliced. The core reads these and allocates none.
Bytes = bytes | bytearray | memoryview

#: ``check_name(buf, at, end) -> int``: checks a range as a topic name (``headwater.mqtt.packets``).
NameCheck = Callable[[Bytes, int, int], int]

#: A field of one of IBM MQ's headers, and such a header: ``headwater.ibmmq.chain`` explains them.
Row = tuple[str, int, int, str, int | bytes | None]
Layout = tuple[bytes, int, int, tuple[Row, ...], tuple[int, ...], int]


class Blocks(Protocol):
    """The decoders of MQTT 5.0 beyond ``headwater.mqtt.packets`` (see ``properties.Packet5``)."""

    props_at: int
    props_end: int

    def block(self, at: int, end: int, where: int = 0) -> int:
        """Check a property block. Return the offset after it, or an error."""
        ...

    def publish_block(self, at: int, end: int) -> int:
        """Check PUBLISH's property block. Return 0 or an error (``packets.decode_publish``)."""
        ...

    def reason(self, at: int) -> int:
        """Decode a reason code and properties at the end of a packet. Return 0 or an error."""
        ...

    def auth(self, at: int) -> int:
        """Decode AUTH's reason code and properties. Return 0 or an error."""
        ...

    def connack(self, at: int) -> int:
        """Decode CONNACK's reason code and properties. Return 0 or an error."""
        ...


class Transport(Protocol):
    """A non-blocking byte stream with MicroPython's stream methods, which its sockets have.

    Every method raises OSError if the stream is broken.
    """

    def readinto(self, buf: bytearray | memoryview, n: int, /) -> int | None:
        """Read at most ``n`` bytes to the start of ``buf``.

        Return their number, None if there are none now, or 0 if the peer has closed the stream.
        """
        ...

    def write(self, buf: bytes | bytearray | memoryview, off: int, n: int, /) -> int | None:
        """Write up to ``n`` bytes of ``buf`` from ``off``.

        Return how many were accepted, possibly fewer than ``n``, or None if none now. Return 0 while the stream
        performs a handshake, which has its own timeout.
        """
        ...

    def close(self) -> None:
        """Close the stream; closing twice is harmless."""
        ...


class Dialer(Protocol):
    """Provides a client with transports, a clock, and a way to wait; each port has its own."""

    def open(self) -> Transport:
        """Open a new transport. Raises OSError."""
        ...

    def ticks_ms(self) -> int:
        """Return a time in milliseconds from an arbitrary start; it wraps at 2**30 or a multiple of it."""
        ...

    def wait(self, ms: int, /) -> None:
        """Sleep at most ``ms`` milliseconds; return early if bytes arrive."""
        ...


class PollDialer(Dialer, Protocol):
    """A dialer that can open a connection without blocking. Each of these methods is optional."""

    def ready(self) -> bool:
        """Return whether ``open`` will not block. Starts to connect if no attempt is in progress. Raises OSError.

        An attempt has its own timeout (ETIMEDOUT).
        """
        ...

    def hang_up(self) -> None:
        """Release the transport that was opened last or is being opened."""
        ...

    def aim(self, host: str, port: int, /) -> None:
        """Have the next connection, and only that one, lead to this address."""
        ...

    def sleep(self, ms: int, /) -> None:
        """Sleep ``ms`` milliseconds, even if bytes arrive. Without this method, ``wait`` is called."""
        ...


class Network(Protocol):
    """The network interface below a connection, for instance WiFi; a keeper (``headwater.reconnect``) drives it."""

    def start(self) -> None:
        """Bring the interface up at the next ``poll``; harmless while it runs. Raises ValueError for a bad setting."""
        ...

    def stop(self) -> None:
        """Take the interface down."""
        ...

    def poll(self, busy: bool = True, /) -> bool:
        """Drive the interface without blocking. Return whether it has a link and an address.

        It may save power while it is not ``busy``. Allocates nothing while it is up.
        """
        ...

    def failed(self, status: int, errno: int, /) -> None:
        """Record that a connection or an attempt ended with ``status``; ``errno`` is the dialer's error, or 0.

        The interface may restart if no server has answered.
        """
        ...

    def works(self) -> None:
        """Record that a server has accepted a connection."""
        ...


class ReceiveBuffer(Protocol):
    """The part of ``headwater.connection.RxBuf`` that a read from a transport needs."""

    @property
    def view(self) -> bytearray | memoryview:
        """The memory to read into."""
        ...

    @property
    def room(self) -> int:
        """The result of the last ``window``, in bytes."""
        ...

    def window(self) -> int:
        """Prepare ``view`` for a read. Return the number of bytes that may be read into it."""
        ...


class Session(Protocol):
    """The client's session of a protocol, which ``headwater.connection`` drives. It does no I/O and reads no clock."""

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
        """Start the session over a new transport. Return 0, or the error if CONNECT cannot be encoded."""
        ...

    def disconnect(self) -> int:
        """Queue the last packet. Return 0 or an error."""
        ...

    def lost(self) -> None:
        """Handle the loss of the transport."""
        ...

    def poll(self, now_ms: int, /) -> int:
        """Check the timeouts. Return 0, or the status of a broken connection."""
        ...

    def ping(self) -> int:
        """Queue a ping. Return 0 or E_AGAIN."""
        ...

    def awaits(self) -> bool:
        """Return whether the peer owes an acknowledgement or an answer."""
        ...

    def out(self) -> int:
        """Return the number of bytes to send now, at ``out_buf[out_at]``; or a status."""
        ...

    def sent(self, k: int, /) -> int:
        """Record that the transport accepted ``k`` bytes. Return what ``out`` returns next."""
        ...

    def enqueue(self, topic: Bytes, payload: Bytes, flags: int, extra: Bytes = ..., /) -> int:
        """Put a message into the outbox or the transmit buffer. Return its number, 0 at QoS 0, or an error."""
        ...

    def feed(self, n: int, /) -> int:
        """Decode ``n`` bytes, just read into ``rx.view``. Return 0, or the error that broke the connection."""
        ...


class Sink(Protocol[P]):
    """Receives messages larger than the receive buffer, of MQTT (``Sink[Packet]``) or FMQ (``Sink[Frame]``)."""

    def open(self, packet: P, size: int, /) -> bool:
        """Start a message with ``size`` bytes of payload. Return False to skip it.

        ``packet`` has the message's topic, flags and packet identifier, and is valid until this method returns.
        """
        ...

    def write(self, buf: Bytes, at: int, n: int, /) -> object:
        """Take the next ``n`` bytes of the payload, at ``buf[at]``. An exception ends the message unacknowledged."""
        ...

    def close(self, complete: bool, /) -> object:
        """End the message. Discard it unless ``complete`` is true: the connection was lost."""
        ...


class JournalFile(Protocol):
    """The file of a ``headwater.journal``, and its successor while that is written. All methods may raise OSError."""

    def load(self) -> bytearray | None:
        """Return the content of the file, None if it does not exist. ``write`` then appends to it."""
        ...

    def write(self, buf: Bytes, at: int, n: int, /) -> object:
        """Append ``buf[at : at + n]`` completely, or raise OSError."""
        ...

    def sync(self) -> object:
        """Make everything written so far survive a power cut."""
        ...

    def begin(self) -> object:
        """Start an empty successor, which ``write`` then appends to. An unfinished successor is discarded."""
        ...

    def replace(self) -> object:
        """Sync the successor and replace the file with it atomically: a power cut leaves one or the other."""
        ...

    def set_aside(self) -> object:
        """Rename the file, which is no valid journal, so that it can be examined."""
        ...

    def close(self) -> object:
        """Close the file; closing twice is harmless."""
        ...


class ReceivedIds(Protocol):
    """Stores the identifiers of received QoS 2 messages that wait for PUBREL, so that they survive a power cut."""

    #: The identifiers stored when the store was opened; 0 marks an unused place.
    ids: "array[int]"

    def opened(self, packet_id: int, /) -> int:
        """Store the identifier of a delivered message. Return 0 (PUBREC may be sent) or E_STORE. Repeating it is
        harmless."""
        ...

    def closed(self, packet_id: int, /) -> int:
        """Remove an identifier after PUBREL; 0 removes all of a lost session. Return 0 (PUBCOMP may be sent) or
        E_STORE."""
        ...


class Outbox(Protocol):
    """Holds the unacknowledged messages; ``headwater.connection.RamOutbox`` describes the members.

    Methods with a status return E_STORE if the store cannot be written. ``commit`` then has made no entry, ``set`` to
    REL has changed nothing, and ``set`` to DONE is repeated until the store accepts it.
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
        """Return the offset to build a packet of ``n`` bytes at, or -1."""
        ...

    def commit(self, n: int, state: int, /) -> int:
        """Make the packet at the reserved offset an entry. Return its index, or E_STORE."""
        ...

    def find(self, packet_id: int, /) -> int:
        """Return the index of the unacknowledged entry with this packet identifier, or -1."""
        ...

    def set(self, i: int, state: int, /) -> int:
        """Set an entry's delivery state. Return 0 or E_STORE."""
        ...

    def settle(self) -> int:
        """Record that the peer has no state of an earlier session. Return 0 or E_STORE."""
        ...

    def clear(self) -> None:
        """Remove every entry."""
        ...
