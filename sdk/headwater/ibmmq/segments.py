"""Send payloads larger than any buffer as MQMDE segments, and series of payloads as groups (docs/ibm-mq-segments.md).

    segmenter = Segmenter(client, bytearray(1016), group_ids())
    with open("log.bin", "rb") as file:
        segmenter.begin(b"board-1/log", file)
        status = segmenter.run()

Each segment is a message: an MQMDE (72 bytes) and the next piece of the payload. Only one piece is in memory.

A source is a stream with ``readinto(buf)``, such as a file, or a function ``source(buf, at, n)`` that writes at most
``n`` bytes to ``buf[at]``. Either returns the number of bytes; 0 at the end; None if there are none now.

A message has at most 999,999,999 bytes before its last piece, which is IBM's limit for Offset; send longer payloads as
a group. A message that fits in one piece, if that is known in time, has the default MQMDE. If the length is not given
and the source ends with a piece, the last segment is empty.

After construction only a view (16 bytes on a 32-bit board) is allocated, if the last piece of a message is shorter and
differs in length from that of the message before: in ``begin``, or without a length at the end.
"""

from headwater.errors import (
    CONNECTION,
    E_AGAIN,
    E_ARGUMENT,
    E_OFFLINE,
    E_STATE,
    E_TOO_LARGE,
    E_TOPIC,
    E_WINDOW,
    blame,
)
from headwater.ibmmq.header import (
    MDE_CODED_CHAR_SET_ID,
    MDE_ENCODING,
    MDE_FORMAT,
    MDE_MSG_FLAGS,
    MDE_MSG_SEQ_NUMBER,
    MDE_OFFSET,
    MQMDE,
    Header,
)
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headwater.types import Bytes

    Source = Callable[[bytearray, int, int], "int | None"]


# GroupIds: 24 bytes that are unique to a board and to each of its boots.
#
#     byte 0       0x60 + the length of the board id, or 0x6F if it is longer than eleven bytes
#     bytes 1-11   board id, padded with NULs
#     bytes 12-19  number of the boot, with leading NULs
#     bytes 20-23  counter of this boot, from 1 on
#
# Two boards differ in the first twelve bytes if their makers gave them unique ids of at most eleven bytes (ESP32 has
# six, RP2 eight); a longer id is folded. Two boots of a board differ in their number. A random number is simple and
# safe: with 64 bits, a board that boots a thousand times a day for ten years repeats one with a probability of 4e-7,
# and a million boots of boards without an id with 3e-8. A counter would need a write at each boot and would restart
# when the flash is erased. ``headwater_board.ids`` offers both.
#
# No id is all NULs (MQGI_NONE), and none begins with ``AMQ`` or ``CSQ`` in ASCII or EBCDIC, like those of queue
# managers.

GROUP_ID_SIZE = const(24)
_BOARD = const(11)
_BOOT = const(12)
_COUNT = const(20)


class GroupIds:
    """Creates GroupIds from ``board``, bytes of any length, and ``boot``, one to eight bytes that differ for each boot.

    Nothing allocates after construction.
    """

    def __init__(self, board: "Bytes", boot: "Bytes"):
        if not 0 < len(boot) <= _COUNT - _BOOT:
            raise ValueError("boot: %d bytes: need 1 to 8" % len(boot))
        made = bytearray(GROUP_ID_SIZE)
        n = len(board)
        made[0] = 0x60 | (n if n <= _BOARD else 15)
        for i in range(n):
            at = 1 + i % _BOARD
            made[at] = (made[at] * 31 + board[i]) & 255
        made[_COUNT - len(boot) : _COUNT] = boot
        self._made = made

    def put_next(self, buf: bytearray, at: int) -> int:
        """Write the next id at ``at``. Return the offset after it. 2**32 ids are different."""
        made = self._made
        i = GROUP_ID_SIZE - 1
        while i >= _COUNT:
            if made[i] < 255:
                made[i] += 1
                break
            made[i] = 0
            i -= 1
        buf[at : at + GROUP_ID_SIZE] = made
        return at + GROUP_ID_SIZE


#: Results of ``step``: the message is complete; a segment was published; the client or the source has to wait. After
#: LATER, poll and call again.
DONE = const(0)
MORE = const(1)
LATER = const(2)

#: Errors of the caller, in addition to ``headwater.errors``: the source ended before the given length, or after it.
E_EARLY = const(-7)
E_LATE = const(-8)

#: The largest MsgSeqNumber, and the largest length of a message.
MOST = const(999999999)

_HEADER = const(72)
_GROUP_ID = const(32)
_NO_GROUP = bytes(24)
_UNIT = const(16)
_BLANKS = b"        "
_INHERIT = const(-2)
# MsgFlags: the flag of the last segment includes that of a segment, the flag of the last message that of the group.
_SEGMENT = const(2)
_LAST_SEGMENT = const(6)
_IN_GROUP = const(8)
_LAST_IN_GROUP = const(24)
# The next task of ``step``.
_NOTHING = const(0)
_READ = const(1)
_PUBLISH = const(2)
# Temporary errors of a client.
_LATER = (E_WINDOW, E_AGAIN, E_OFFLINE)
_WAIT_MS = const(1)


class Segmenter:
    """Publishes payloads in segments through ``client``, which has ``publish(topic, payload, qos)``.

    - ``buf``: 72 bytes for the MQMDE, and a multiple of 16 for the piece, as a queue manager splits. The client must
      have room for such a message: in its outbox, or at QoS 0 in its transmit buffer.
    - ``ids``: creates the GroupId of each group, and of each segmented message outside of one.
    - ``big``, ``ccsid``: byte order and character set of the MQMDE.
    - ``format``, ``encoding``, ``data_ccsid``: describe the payload (by default as the MQMDE); they can be changed
      between messages in ``header``.

    Errors are those of ``client.publish``, and E_EARLY and E_LATE.
    """

    def __init__(
        self,
        client: "Any",
        buf: bytearray,
        ids: "GroupIds",
        big: bool = True,
        ccsid: int = 819,
        format: "Bytes" = _BLANKS,
        encoding: int = 0,
        data_ccsid: int = 0,
    ):
        piece = (len(buf) - _HEADER) // _UNIT * _UNIT
        if piece <= 0:
            raise ValueError("buf: %d bytes: need at least 88 (72 and 16)" % len(buf))
        if getattr(client, "backlog", None) is not None:
            raise ValueError("a client with a backlog drops messages; remove the backlog")
        self.client = client
        self.buf = buf
        self.ids = ids
        #: Bytes of payload in each segment except the last.
        self.piece = piece
        #: The MQMDE, in ``buf``.
        self.header = Header(buf)
        self.header.begin(MQMDE, 0, big, ccsid)
        data_ccsid = data_ccsid or ccsid
        if (
            not (data_ccsid > 0 or data_ccsid == _INHERIT)
            or self.header.put(MDE_CODED_CHAR_SET_ID, data_ccsid)
            or (encoding and self.header.put(MDE_ENCODING, encoding))
            or self.header.put_name(MDE_FORMAT, format)
        ):
            raise ValueError(
                "format %r, encoding %r or data_ccsid %r is invalid" % (format, encoding, data_ccsid)
            )
        self.topic: Bytes = b""
        self.qos = 0
        #: The Offset of the current segment: the bytes published before it.
        self.offset = 0
        #: The MsgSeqNumber of the current or next message of the group; 0 without a group.
        self.sequence = 0
        self._last_of_group = False
        self._length = -1
        self._state = _NOTHING
        self._last = False
        self._end = _HEADER + piece
        # The end of the filled part of ``buf``.
        self._at = _HEADER
        self._whole = self._short = memoryview(buf)[: self._end]
        self._piece = self._whole[_HEADER:]
        self._payload: Bytes = self._whole
        self._few = bytearray(_UNIT)
        self._one = bytearray(1)
        # Bound once, because binding allocates.
        self._publish: Callable[[Bytes, Bytes, int], int] = client.publish
        self._from_stream: Source = self._read_stream
        self._stream: Any = None
        self._source: Source = self._from_stream

    def begin_group(self) -> int:
        """Start a group, which ends with the message started with ``last``. Return 0, or E_STATE within a message.

        A previous group without its last message stays incomplete.
        """
        if self._state != _NOTHING:
            return E_STATE
        self.ids.put_next(self.buf, _GROUP_ID)
        self.sequence = 1
        self.topic = b""
        return 0

    def begin(
        self, topic: "Bytes", source: "Any", length: "int | None" = None, qos: int = 1, last: bool = False
    ) -> int:
        """Start a message, which ``step`` reads and publishes. Return 0 or an error.

        ``length`` is the length of the source; without it the message ends with the source. E_STATE: another message is
        in progress, or ``last`` without a group. E_TOO_LARGE: the message would exceed 999,999,999 bytes, or the group
        as many messages. E_TOPIC: a group has one topic. E_ARGUMENT.

        In a group, start a failed message again with the same payload; it keeps its position.
        """
        if self._state != _NOTHING or (last and not self.sequence):
            return E_STATE
        if length is None:
            length = -1
        elif length < 0:
            return E_ARGUMENT
        if length > MOST or self.sequence > MOST:
            return E_TOO_LARGE
        if self.sequence and self.topic and self.topic != topic:
            return E_TOPIC
        if hasattr(source, "readinto"):
            self._stream = source
            self._source = self._from_stream
        elif callable(source):
            self._source = source
        else:
            return E_ARGUMENT
        if not self.sequence:
            self.buf[_GROUP_ID : _GROUP_ID + 24] = _NO_GROUP
        self.header.put(MDE_MSG_SEQ_NUMBER, self.sequence or 1)
        if length > 0 and length % self.piece:
            _view(self, _HEADER + length % self.piece)
        self.topic = topic
        self.qos = qos
        self.offset = 0
        self._length = length
        self._last_of_group = last
        self._at = _HEADER
        self._state = _READ
        return 0

    def step(self) -> int:
        """Read the next piece from the source and publish it. Return DONE, MORE, LATER or an error.

        Blocks only if the source or the client does. Neither may call this segmenter. After an error of the client
        nothing has changed: ``step`` retries, ``abandon`` gives up. An error of the source (E_EARLY; E_LATE;
        E_TOO_LARGE for a message without end; E_ARGUMENT for an invalid result), or an exception, ends the message;
        segments already sent stay incomplete. E_STATE: there is no message.
        """
        state = self._state
        self._state = _NOTHING
        if state == _READ:
            state = _read(self)
            if state:
                return state
        elif state == _NOTHING:
            return E_STATE
        state = self._publish(self.topic, self._payload, self.qos)
        if state < 0:
            self._state = _PUBLISH
            # At QoS 0 a message is lost with its connection, so it is published once more.
            return LATER if state in _LATER or blame(state) == CONNECTION else state
        if not self._last:
            self.offset += self.piece
            self._at = _HEADER
            self._state = _READ
            return MORE
        self._stream = None
        self._source = self._from_stream
        if self.sequence:
            self.sequence = 0 if self._last_of_group else self.sequence + 1
        return DONE

    def run(self) -> int:
        """Call ``step`` until the message is complete, and ``client.wait`` meanwhile.

        Returns 0, the error of ``step``, or the status with which the connection ended; ``run`` then resumes on the
        next connection.
        """
        while True:
            status = self.step()
            if status <= 0:
                return status
            if status == LATER:
                bad: int = self.client.wait(_WAIT_MS)
                if bad < 0:
                    return bad

    def abandon(self) -> None:
        """Give up the message and the group. Segments already sent stay incomplete at the receiver."""
        self._state = _NOTHING
        self._stream = None
        self._source = self._from_stream
        self.sequence = 0

    def _read_stream(self, buf: bytearray, at: int, n: int) -> "int | None":
        """Read from a stream, which writes to the start of its buffer; after a short read a few bytes at a time."""
        if at == _HEADER:
            return self._stream.readinto(self._piece)  # type: ignore[no-any-return]
        few = self._few if n >= _UNIT else self._one
        n = self._stream.readinto(few)
        if n:
            if n < 0 or n > len(few):
                # An invalid result, which ``_read`` would accept because it asked for more.
                return -1
            _copy(few, n, buf, at)
        return n


def _copy(few: "Bytes", n: int, buf: bytearray, at: int) -> None:
    while n:
        n -= 1
        buf[at + n] = few[n]


def _read(s: Segmenter) -> int:
    """Fill the buffer and update the MQMDE. Return 0 if the segment can be published, LATER, or an error."""
    n: int | None = 1
    while n and s._at < s._end:
        n = s._source(s.buf, s._at, s._end - s._at)
        if n is None:
            s._state = _READ
            return LATER
        if n < 0 or n > s._end - s._at:
            return E_ARGUMENT
        s._at += n
    total = s.offset + s._at - _HEADER
    if 0 <= s._length < total:
        return E_LATE
    if total > MOST:
        return E_TOO_LARGE
    if n == 0:
        if total < s._length:
            return E_EARLY
    elif total == s._length:
        # The last segment: check that the source ends here.
        n = s._source(s._one, 0, 1)
        if n is None:
            s._state = _READ
            return LATER
        if n:
            if n != 1:
                return E_ARGUMENT
            return E_LATE
    _describe(s, n == 0)
    return 0


def _describe(s: Segmenter, last: bool) -> None:
    """Update the MQMDE for the piece in the buffer."""
    s._last = last
    s.header.put(MDE_OFFSET, s.offset)
    if last or s.offset == 0:
        # Segments in between keep the values of the first one.
        flags = 0
        if s.sequence:
            flags = _LAST_IN_GROUP if s._last_of_group else _IN_GROUP
        if not last:
            flags |= _SEGMENT
            if not s.sequence:
                s.ids.put_next(s.buf, _GROUP_ID)
        elif s.offset:
            flags |= _LAST_SEGMENT
        s.header.put(MDE_MSG_FLAGS, flags)
        s._payload = _view(s, s._at)


def _view(s: Segmenter, n: int) -> "memoryview":
    """Return the first ``n`` bytes of the buffer."""
    if n == s._end:
        return s._whole
    if len(s._short) != n:
        s._short = s._whole[:n]
    return s._short
