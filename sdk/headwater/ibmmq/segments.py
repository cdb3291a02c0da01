"""Payloads larger than any buffer, as MQMDE segments, and series of payloads, as groups.

    segmenter = Segmenter(client, bytearray(1016), group_ids())
    with open("log.bin", "rb") as file:
        segmenter.begin(b"board-1/log", file)
        status = segmenter.run()

Each segment is a message of its own: an MQMDE (72 bytes), and the next piece of the payload. Only the piece under way
is in memory. docs/ibm-mq-segments.md says how they come together again.

A source is a stream with ``readinto(buf)``, such as a file, or a function ``source(buf, at, n)``, which writes at most
``n`` bytes to ``buf[at]``. Either answers how many bytes there were; 0 at the end; None when there are none for now.

A message is at most 999,999,999 bytes and the last piece: IBM's limit for Offset. What is longer goes as a group. A
message that fits into one piece, and of which that is known in time, is no segment: the MQMDE's five fields are at
their defaults. Of a message whose length is not said and which ends with a piece, the last segment is empty.

Nothing here allocates after construction but a view (16 bytes on a 32-bit board) where the last piece of a message is
shorter, and not as long as the last such one: in ``begin``, and where the length is not said, at the end.
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


# GroupIds: 24 bytes that no other board makes, nor this one after a reset.
#
#     byte 0       0x60 + the length of the board's id, or 0x6F when that is more than eleven
#     bytes 1-11   the board's id, behind it NULs
#     bytes 12-19  the number of the boot, before it NULs
#     bytes 20-23  which of this boot it is, from 1 on
#
# Two boards differ in the first twelve bytes, as long as their makers gave them ids of their own, of eleven bytes at
# most
# (ESP32 has six, RP2 eight); a longer id is folded into eleven. Two boots of one board differ in their number. Chance
# is
# the simplest that is right: of 64 random bits, a board that starts a thousand times a day for ten years has the same
# twice with a probability of 4e-7, and a million boots of boards without an id, with one of 3e-8. A counter would have
# to
# be written at each start, and begins again when somebody wipes the flash. ``headwater_board.ids`` has both.
#
# No id is all NULs (MQGI_NONE), and none begins with ``AMQ`` or ``CSQ`` in ASCII or EBCDIC, as those that queue
# managers
# make.

GROUP_ID_SIZE = const(24)
_BOARD = const(11)
_BOOT = const(12)
_COUNT = const(20)


class GroupIds:
    """Makes GroupIds from ``board``, bytes of any length, and ``boot``, one to eight that are others at each boot.

    Nothing allocates after construction.
    """

    def __init__(self, board: "Bytes", boot: "Bytes"):
        if not 0 < len(boot) <= _COUNT - _BOOT:
            raise ValueError("the number of the boot is 1 to 8 bytes")
        made = bytearray(GROUP_ID_SIZE)
        n = len(board)
        made[0] = 0x60 | (n if n <= _BOARD else 15)
        for i in range(n):
            at = 1 + i % _BOARD
            made[at] = (made[at] * 31 + board[i]) & 255
        made[_COUNT - len(boot) : _COUNT] = boot
        self._made = made

    def put_next(self, buf: bytearray, at: int) -> int:
        """Write the next id at ``at``: the offset behind it. 2**32 of them are different."""
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


#: The answers of ``step``: the message is handed in to its end; a segment is; nothing is, because the client or the
#: source has to wait. LATER means: poll, and come again.
DONE = const(0)
MORE = const(1)
LATER = const(2)

#: The caller's fault, beside those of ``headwater.errors``: the source ended before the length that was said, or did
#: not end there.
E_EARLY = const(-7)
E_LATE = const(-8)

#: The largest MsgSeqNumber, and where the last segment of a message may end.
MOST = const(999999999)

_HEADER = const(72)
_GROUP_ID = const(32)
_NO_GROUP = bytes(24)
_UNIT = const(16)
_BLANKS = b"        "
_INHERIT = const(-2)
# MsgFlags: the last segment is a segment as well, and the last message is in the group.
_SEGMENT = const(2)
_LAST_SEGMENT = const(6)
_IN_GROUP = const(8)
_LAST_IN_GROUP = const(24)
# What ``step`` has to do.
_NOTHING = const(0)
_READ = const(1)
_PUBLISH = const(2)
# What a client answers for now.
_LATER = (E_WINDOW, E_AGAIN, E_OFFLINE)
_WAIT_MS = const(1)


class Segmenter:
    """Hands payloads in to ``client``: whatever has ``publish(topic, payload, qos)`` and answers with a status, as the
    clients and keepers of MQTT and FMQ do.

    ``buf`` is the caller's: 72 bytes, and the piece, of which a multiple of 16 bytes is used, as where a queue manager
    cuts. The client must have room for such a message: in its outbox, or at QoS 0 in its transmit buffer.

    The MQMDE's integers are big-endian when ``big``, its characters in ``ccsid``. ``encoding`` (by default that of the
    MQMDE), ``data_ccsid`` (likewise) and ``format`` describe the payload, and can be changed between messages in
    ``header``. ``ids`` gives each segmented message and each group its GroupId.

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
            raise ValueError("the buffer needs 72 bytes, and 16 at least")
        if getattr(client, "backlog", None) is not None:
            raise ValueError(
                "a backlog drops messages, and what it drops of a segmented one is missing for ever"
            )
        self.client = client
        self.buf = buf
        self.ids = ids
        #: How many bytes of the payload are in each segment but the last.
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
            raise ValueError("format, encoding or data_ccsid is none")
        self.topic: Bytes = b""
        self.qos = 0
        #: The Offset of the segment under way: so many bytes were handed in before it.
        self.offset = 0
        #: The MsgSeqNumber of the message under way, or the next, in the group that is open; 0 without one.
        self.sequence = 0
        self._last_of_group = False
        self._length = -1
        self._state = _NOTHING
        self._last = False
        self._end = _HEADER + piece
        # Up to where ``buf`` is filled.
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
        """The messages from here on are one group, up to one that is begun with ``last``: 0; E_STATE in the middle of a
        message. A group that was open before stays incomplete."""
        if self._state != _NOTHING:
            return E_STATE
        self.ids.put_next(self.buf, _GROUP_ID)
        self.sequence = 1
        self.topic = b""
        return 0

    def begin(
        self, topic: "Bytes", source: "Any", length: "int | None" = None, qos: int = 1, last: bool = False
    ) -> int:
        """Begin a message, which ``step`` hands in: 0. Nothing is read yet.

        ``length`` is how many bytes the source has; without it they go on to the source's end. E_STATE: another message
        is under way, or ``last`` without a group. E_TOO_LARGE: the message would end beyond 999,999,999, or the group
        have more messages. E_TOPIC: a group has one topic. E_ARGUMENT.

        In a group, a message that came to no end is begun again in the same place: with the same payload, for what had
        left is not taken back.
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
        """Read what the source has for the next piece, and hand it in when it is complete: DONE, MORE or LATER, or an
        error. Never waits, unless the source or the client does. Neither may call this segmenter.

        An error of the client leaves everything as it is: ``step`` tries again, ``abandon`` does not. After an error of
        the source (E_EARLY, E_LATE; E_TOO_LARGE, when a message has no end; E_ARGUMENT for an answer that is none), and
        whatever it raises, the message is over: what has left stays incomplete. E_STATE: there is no message.
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
            # At QoS 0 a message is lost with its connection: it goes out again.
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
        """``step`` to the end, and let ``client.wait`` do its work meanwhile: 0 or the error of ``step``, or the status
        with which the connection ended; once there is another one, ``run`` goes on."""
        while True:
            status = self.step()
            if status <= 0:
                return status
            if status == LATER:
                bad: int = self.client.wait(_WAIT_MS)
                if bad < 0:
                    return bad

    def abandon(self) -> None:
        """Give up the message under way, and the group. What has left stays incomplete at the other end."""
        self._state = _NOTHING
        self._stream = None
        self._source = self._from_stream
        self.sequence = 0

    def _read_stream(self, buf: bytearray, at: int, n: int) -> "int | None":
        """``source`` for a stream, which writes where its buffer begins: behind a short read, a few bytes at a time."""
        if at == _HEADER:
            return self._stream.readinto(self._piece)  # type: ignore[no-any-return]
        few = self._few if n >= _UNIT else self._one
        n = self._stream.readinto(few)
        if n:
            if n < 0 or n > len(few):
                # No answer; ``_read`` has asked for more, and would believe it.
                return -1
            _copy(few, n, buf, at)
        return n


def _copy(few: "Bytes", n: int, buf: bytearray, at: int) -> None:
    while n:
        n -= 1
        buf[at + n] = few[n]


def _read(s: Segmenter) -> int:
    """Fill the buffer, and write what the MQMDE says of it: 0 when it can be handed in, LATER, or an error."""
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
        # This is the last segment: is it the source's end as well?
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
    """Write what the MQMDE says of the piece that is in the buffer."""
    s._last = last
    s.header.put(MDE_OFFSET, s.offset)
    if last or s.offset == 0:
        # In between they are the first segment's.
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
    """The first ``n`` bytes of the buffer."""
    if n == s._end:
        return s._whole
    if len(s._short) != n:
        s._short = s._whole[:n]
    return s._short
