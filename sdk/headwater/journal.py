"""An outbox in a file, for messages that survive a power cut.

Every change of the outbox is a record, appended to the journal. Replaying the records restores the ring, with DUP set
on messages that may have been sent, and the identifiers of received QoS 2 messages. When the journal reaches its
limit, its live content is written to a new file, which replaces the old one.

A record is

    kind (1 byte)   packet id (2)   n (3)   n bytes   checksum (4), all numbers big-endian

Kinds:

- BEGIN, the first record of a file, with n = 12: "HWJ", format version, slots, size of the ring, 1 if ``fresh``,
  ``protocol``. Its packet id is that of the oldest entry, or of the next one if there is none.
- The new state of an entry (``connection``), with the packet if it is AT1 or AT2.
- OPENED and CLOSED, for the identifier of a received message.
- SETTLED: ``fresh`` is cleared.

The checksum is the reflected 30-bit CRC of CDMA: a small integer on a 32-bit board. It detects every burst of up to 30
bits.

Bytes after the last whole record are an interrupted write and are cut off. Damaged records before it are skipped. The
messages of lost records are listed in ``lost``; their identifiers are released with PUBREL, so that the server does not
take a later message with the same identifier for a duplicate. Received identifiers from before the damage are
removed: a duplicate is better than a lost message.

This module does no I/O: the port supplies the file (``types.JournalFile``).
"""

from array import array

from headwater.connection import FIRST_REQUEST_ID, RamOutbox
from headwater.errors import E_STORE
from headwater.wire import TICKS_MASK, const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes, JournalFile

_FREE = const(0)
_AT1 = const(1)
_AT2 = const(2)
_REL = const(3)
_DONE = const(4)
_OPENED = const(5)
_CLOSED = const(6)
_SETTLED = const(7)
_BEGIN = const(8)

_HEAD = const(6)
_CHECK = const(4)
_BEGIN_SIZE = const(12)
_MAGIC = b"HWJ\x01"
# The shortest record of a message: topic of one byte, no payload.
_SHORTEST = const(17)
_PUBREL = b"\x62\x02"
_DUP = const(8)
_INIT = const(0x3FFFFFFF)
_CRC = (
    0x00000000, 0x2DB1DA21, 0x2AAD3241, 0x071CE860, 0x2494E281, 0x092538A0, 0x0E39D0C0, 0x23880AE1,
    0x38E74301, 0x15569920, 0x124A7140, 0x3FFBAB61, 0x1C73A180, 0x31C27BA1, 0x36DE93C1, 0x1B6F49E0,
)  # fmt: skip


def crc30(buf: "Bytes", at: int, end: int, crc: int) -> int:
    """Return the checksum of ``buf[at:end]``, continued from ``crc``, the checksum of the bytes before."""
    table = _CRC
    while at < end:
        crc ^= buf[at]
        crc = crc >> 4 ^ table[crc & 15]
        crc = crc >> 4 ^ table[crc & 15]
        at += 1
    return crc


class JournalOutbox(RamOutbox):
    """Up to ``slots`` messages in ``size`` bytes of memory, and a journal of them in ``file``.

    The constructor restores the messages of the file. It makes the ring larger if they need it, and keeps the number of
    slots of a file with messages, because packet identifiers depend on it.

    - ``limit``: the maximum size of the journal, or twice its live content if that is more.
    - ``receive_window``: places for identifiers of received QoS 2 messages; more allocate.
    - ``sync_every``: sync the file after this many messages at QoS 1. A power cut loses the messages since.
    - ``sync_ms``: sync after this time as well, by ``tick``. Messages at QoS 2, and all that exactly-once delivery
      depends on, are synced before anything of them is sent.
    - ``protocol``: the protocol level of the packets: 4 (MQTT 3.1 and 3.1.1, which have the same packets) or 5; 0 for
      unspecified.

    Results:

    - ``torn``: bytes that were cut off the end. ``damaged``: bytes in the middle that were not records; ``lost``: the
      packet identifiers of messages lost with them.
    - ``unreadable``: True if the whole file was damaged; it has been set aside.

    Raises OSError if the file cannot be read, ValueError if it has messages of the other protocol level. If it cannot
    be written, methods that return a status return E_STORE with the cause in ``error``; the next call writes a new
    file.
    """

    def __init__(
        self,
        file: "JournalFile",
        size: int,
        slots: int,
        receive_window: int = 20,
        limit: int = 480,
        sync_every: int = 1,
        sync_ms: int = 0,
        protocol: int = 0,
    ):
        if sync_every < 1 or sync_ms < 0:
            raise ValueError(
                "sync_every %r, sync_ms %r: need at least 1 message and 0 ms" % (sync_every, sync_ms)
            )
        RamOutbox.__init__(self, size, slots)
        self.ids = array("H", [0] * receive_window)
        #: The session finds the identifiers here.
        self.received = self
        self.limit = limit
        self.sync_every = sync_every
        self.sync_ms = sync_ms
        self.protocol = protocol
        self.torn = self.damaged = 0
        self.lost: list[int] = []
        self.unreadable = False
        #: The last error of the file system.
        self.error: OSError | None = None
        #: Changes in the file that are not synced, acknowledgements included.
        self.unsynced = 0
        self._messages = 0
        self._since = 0
        self._scratch = bytearray(_BEGIN_SIZE)
        self._file = file
        self._end = 0
        self._full = 0
        # True if the file differs from the memory and has to be rewritten.
        self._stale = False
        image = file.load()
        if image is not None:
            _replay(self, image, size, slots)
            if self.protocol != protocol:
                if self.count and self.protocol and protocol:
                    file.close()
                    raise ValueError(
                        "protocol %r: the journal has messages of protocol %r" % (protocol, self.protocol)
                    )
                if not self.count:
                    self.protocol = protocol
                    self._stale = True
            if not (self._stale or self.torn or self.damaged or self.unreadable):
                self._end = len(image)
                self._full = limit
                return
        self._stale = True
        if self.compact() and image is None and self.error is not None:
            raise self.error

    def commit(self, n: int, state: int) -> int:
        """Make the packet of ``n`` bytes at the reserved offset an entry. Return its index, or E_STORE."""
        i = RamOutbox.commit(self, n, state)
        if _keep(self, state, i, n):
            self.state[i] = _FREE
            self.count -= 1
            self.next = i
            self._free = self.reserved
            return E_STORE
        return i

    def set(self, i: int, state: int) -> int:
        """Set an entry's delivery state and remove the oldest entries while they are DONE. Return 0 or E_STORE."""
        before = self.state[i]
        RamOutbox.set(self, i, state)
        if _keep(self, state, i, 0):
            if state != _DONE:
                self.state[i] = before
            return E_STORE
        return 0

    def settle(self) -> int:
        """Clear ``fresh``: the server has no messages of an earlier session. Return 0 or E_STORE."""
        self.fresh = False
        if _keep(self, _SETTLED, 0, 0):
            self.fresh = True
            return E_STORE
        return 0

    def clear(self) -> None:
        """Remove every entry."""
        if self.count:
            RamOutbox.clear(self)
            self.compact()

    def opened(self, packet_id: int) -> int:
        """Record that a message was passed to the application. Return 0 or E_STORE."""
        ids = self.ids
        free = -1
        for i in range(len(ids)):
            if ids[i] == packet_id:
                return 0
            if ids[i] == 0:
                free = i
        if free < 0:
            free = len(ids)
            ids.append(0)
        ids[free] = packet_id
        if _keep(self, _OPENED, packet_id - 1, 0):
            ids[free] = 0
            return E_STORE
        return 0

    def closed(self, packet_id: int) -> int:
        """Remove a received identifier, or all of them (0). Return 0 or E_STORE."""
        ids = self.ids
        place = -1
        for i in range(len(ids)):
            if ids[i] and (ids[i] == packet_id or packet_id == 0):
                place = i
                ids[i] = 0
        if (place >= 0 or self._stale) and _keep(self, _CLOSED, packet_id - 1, 0):
            if packet_id and place >= 0:
                ids[place] = packet_id
            return E_STORE
        return 0

    def sync(self) -> int:
        """Sync the file, for instance before a deep sleep. Return 0 or E_STORE."""
        if not self.unsynced and not self._stale:
            return 0
        if self._stale:
            return self.compact()
        try:
            self._file.sync()
        except OSError as error:
            return _failed(self, error)
        self.unsynced = self._messages = 0
        return 0

    def tick(self, now_ms: int) -> int:
        """Sync changes that are ``sync_ms`` old, including acknowledgements. Return 0 or E_STORE."""
        if not self.unsynced:
            self._since = now_ms
        elif self.sync_ms and (now_ms - self._since) & TICKS_MASK >= self.sync_ms:
            self._since = now_ms
            return self.sync()
        return 0

    def compact(self) -> int:
        """Write the live content to a new file, which replaces the old one. Return 0 or E_STORE. Allocates."""
        try:
            self._file.begin()
            _write_all(self)
            self._file.replace()
        except OSError as error:
            return _failed(self, error)
        self.unsynced = self._messages = 0
        self._full = max(self.limit, 2 * self._end)
        self._stale = False
        return 0

    def close(self) -> None:
        """Sync and close the file."""
        self.sync()
        self._stale = True
        self._file.close()


def _failed(box: JournalOutbox, error: OSError) -> int:
    box.error = error
    box._stale = True
    return E_STORE


def _keep(box: JournalOutbox, kind: int, i: int, n: int) -> int:
    """Record that entry ``i`` (or received identifier i + 1) is now of this kind. Return 0 or E_STORE."""
    if box._stale or box._end + _HEAD + _CHECK + n > box._full:
        return box.compact()
    try:
        _put(box, kind, i, n)
        if kind == _AT1:
            box._messages += 1
        if kind != _DONE and (kind != _AT1 or box._messages >= box.sync_every):
            box._file.sync()
            box.unsynced = box._messages = 0
        else:
            box.unsynced += 1
    except OSError as error:
        return _failed(box, error)
    return 0


def _put(box: JournalOutbox, kind: int, i: int, n: int) -> None:
    """Write a record with the ``n`` bytes of entry ``i``."""
    head = box._scratch
    head[0] = kind
    head[1] = i + 1 >> 8
    head[2] = i + 1 & 255
    head[3] = n >> 16
    head[4] = n >> 8 & 255
    head[5] = n & 255
    box._file.write(head, 0, _HEAD)
    crc = crc30(head, 0, _HEAD, _INIT)
    if n:
        box._file.write(box.buf, box.at[i], n)
        crc = crc30(box.buf, box.at[i], box.at[i] + n, crc)
    _put_check(box, crc, n)


def _put_check(box: JournalOutbox, crc: int, n: int) -> None:
    head = box._scratch
    head[0] = crc >> 24
    head[1] = crc >> 16 & 255
    head[2] = crc >> 8 & 255
    head[3] = crc & 255
    box._file.write(head, 0, _CHECK)
    box._end += _HEAD + n + _CHECK


def _write_all(box: JournalOutbox) -> None:
    """Write a whole journal of the memory's content."""
    box._end = 0
    size = len(box.buf)
    first = bytearray(_HEAD) + _MAGIC
    first[0] = _BEGIN
    first[1:3] = (box.head + 1).to_bytes(2, "big")
    first[5] = _BEGIN_SIZE
    first += box.slots.to_bytes(2, "big") + size.to_bytes(4, "big") + bytes((box.fresh, box.protocol))
    box._file.write(first, 0, len(first))
    _put_check(box, crc30(first, 0, len(first), _INIT), _BEGIN_SIZE)
    i = box.head
    for _ in range(box.count):
        # REL and DONE have no content: PUBREL follows from the packet identifier.
        _put(box, box.state[i], i, box.size[i] if box.state[i] <= _AT2 else 0)
        i = i + 1 if i + 1 < box.slots else 0
    for packet_id in box.ids:
        if packet_id:
            _put(box, _OPENED, packet_id - 1, 0)


def _record(image: bytearray, at: int) -> int:
    """Return the size of the record at ``at``; 0 if it is incomplete or damaged."""
    end = at + _HEAD
    if end > len(image) or not 0 < image[at] <= _BEGIN:
        return 0
    n = image[at + 3] << 16 | image[at + 4] << 8 | image[at + 5]
    end += n
    if end + _CHECK > len(image) or (n > 0) != (image[at] <= _AT2 or image[at] == _BEGIN):
        return 0
    found = crc30(image, at, end, _INIT)
    if image[end] != found >> 24 or image[end + 1] != found >> 16 & 255:
        return 0
    return end + _CHECK - at if image[end + 2] == found >> 8 & 255 and image[end + 3] == found & 255 else 0


def _replay(box: JournalOutbox, image: bytearray, size: int, slots: int) -> None:
    """Replay the records. Until the end, ``at`` has the offsets of the entries' packets in the image."""
    at = 0
    n = _record(image, 0)
    begun = n == _HEAD + _BEGIN_SIZE + _CHECK and image[_HEAD : _HEAD + 4] == _MAGIC
    if begun:
        _begin(box, image)
        at = n
    found = at
    while at < len(image):
        n = _record(image, at)
        if n:
            if not begun and image[at] <= _DONE:
                box.head = box.next = min(max(0, (image[at + 1] << 8 | image[at + 2]) - 1), box.slots - 1)
                begun = True
            if not _apply(box, image, at, n - _HEAD - _CHECK):
                box.damaged += n
            found += n
            at += n
            continue
        bad = at
        while at < len(image) and not _record(image, at):
            at += 1
        if at == len(image):
            box.torn = at - bad
        else:
            box.damaged += at - bad
            for i in range(len(box.ids)):
                box.ids[i] = 0
    if not found:
        box._file.set_aside()
        box.unreadable = True
        box.damaged, box.torn = box.torn, 0
        return
    if box.damaged:
        # SETTLED may be lost: then PUBREL for every identifier would release messages that have to be retransmitted.
        box.fresh = False
    bad = box.torn + box.damaged
    if bad:
        # They may have been the newest messages, and sent.
        for _ in range(min(box.slots - box.count, 1 + bad // _SHORTEST)):
            _place(box, box.next, _REL, 0, 0)
    _load(box, image, size, slots)


def _begin(box: JournalOutbox, image: bytearray) -> None:
    slots = image[_HEAD + 4] << 8 | image[_HEAD + 5]
    if 0 < slots < FIRST_REQUEST_ID:
        RamOutbox.__init__(box, len(box.buf), slots)
        box.head = box.next = min(max(0, (image[1] << 8 | image[2]) - 1), slots - 1)
        box.fresh = image[_HEAD + 10] == 1
        box.protocol = image[_HEAD + 11]


def _apply(box: JournalOutbox, image: bytearray, at: int, n: int) -> bool:
    """Replay one record. Return whether it was consistent."""
    kind = image[at]
    i = (image[at + 1] << 8 | image[at + 2]) - 1
    if kind == _SETTLED:
        box.fresh = False
    elif kind in (_OPENED, _CLOSED):
        ids = box.ids
        for k in range(len(ids)):
            if ids[k] == i + 1 or (kind == _CLOSED and i < 0):
                ids[k] = 0
        if kind == _OPENED:
            k = 0
            while k < len(ids) and ids[k]:
                k += 1
            if k == len(ids):
                ids.append(0)
            ids[k] = i + 1
    elif kind > _DONE or not 0 <= i < box.slots:
        return False
    elif kind <= _AT2:
        _place(box, i, kind, at + _HEAD, n)
    elif (i - box.head) % box.slots < box.count:
        RamOutbox.set(box, i, kind)
    elif kind == _REL or i == box.next:
        _place(box, i, kind, 0, 0)
    else:
        return False
    return True


def _place(box: JournalOutbox, i: int, state: int, at: int, n: int) -> None:
    """Make ``i`` the newest entry. Without damage it directly follows the previous one."""
    slots = box.slots
    gap = (i - box.next) % slots
    while box.count + gap >= slots:
        # There was room, so the oldest entries had been acknowledged.
        box.state[box.head] = _FREE
        box.head = (box.head + 1) % slots
        box.count -= 1
    for _ in range(gap):
        box.lost.append(box.next + 1)
        _entry(box, _REL, 0, 0)
    _entry(box, state, at, n)


def _entry(box: JournalOutbox, state: int, at: int, n: int) -> None:
    i = box.next
    box.state[i] = state
    box.at[i] = at
    box.size[i] = n
    box.next = (i + 1) % box.slots
    box.count += 1
    if state == _DONE:
        RamOutbox.set(box, i, state)


def _load(box: JournalOutbox, image: bytearray, size: int, slots: int) -> None:
    """Copy the entries into the ring, the oldest to its start."""
    live = [(box.head + k) % box.slots for k in range(box.count)]
    sizes = [box.size[i] if box.state[i] <= _AT2 else 4 for i in live]
    need = sum(sizes)
    if need > len(box.buf):
        box.buf = bytearray(need)
        box._pin = memoryview(box.buf)
    to = 0
    for i, n in zip(live, sizes):
        if box.state[i] <= _AT2:
            box.buf[to : to + n] = image[box.at[i] : box.at[i] + n]
            box.buf[to] |= _DUP
        else:
            box.buf[to : to + n] = _PUBREL + (i + 1).to_bytes(2, "big")
        box.at[i] = to
        box.size[i] = n
        to += n
    box._free = to
    if not live and box.slots != slots:
        fresh = box.fresh
        RamOutbox.__init__(box, size, slots)
        box.fresh = fresh
        box._stale = True
