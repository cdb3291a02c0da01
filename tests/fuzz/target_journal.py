"""Target: an outbox's journal, whatever is in its file.

An input is a byte of options (1: the rest is the file as it is), the slots and the number of bytes of the outbox, and a
script of records, most of them with the right checksum (see ``_image``).
"""

from journal_file import MemoryFile

from headwater.connection import AT1, AT2, DONE, REL
from headwater.journal import JournalOutbox, crc30
from tests.fuzz.script import Script

RECEIVE_WINDOW = 3
LIMIT = 300


def _record(kind: int, packet_id: int, body: bytes) -> bytes:
    record = bytes([kind]) + packet_id.to_bytes(2, "big") + len(body).to_bytes(3, "big") + body
    return record + crc30(record, 0, len(record), 0x3FFFFFFF).to_bytes(4, "big")


def _image(script: Script) -> bytes:
    """BEGIN, unless the script says otherwise, and records; some of them damaged, cut short, or left out."""
    image = b""
    if script.byte() & 1 == 0:
        slots = 1 + script.below(9)
        head = b"HWJ\x01" + slots.to_bytes(2, "big") + (100).to_bytes(4, "big") + bytes([script.below(2), 0])
        image = _record(8, script.below(slots + 2), head)
    while script.more():
        kind = script.below(10)
        packet_id = script.below(12)
        body = script.take(1 + script.below(40)) if kind in (AT1, AT2) else b""
        if kind == 9:
            image += script.take(script.below(20))
            continue
        record = bytearray(_record(kind, packet_id, body))
        damage = script.byte()
        if damage >= 250:
            record[script.below(len(record))] ^= 1 << script.below(8)
        elif damage >= 245:
            del record[script.below(len(record)) :]
        image += record
    return image


def _content(box: JournalOutbox) -> list[tuple[int, int, bytes]]:
    """The entries, oldest first: packet id, state, and of what is not acknowledged the bytes."""
    found = []
    for k in range(box.count):
        i = (box.head + k) % box.slots
        state, at, n = box.state[i], box.at[i], box.size[i]
        assert state in (AT1, AT2, REL, DONE)
        assert 0 <= at <= at + n <= len(box.buf)
        data = bytes(box.buf[at : at + n])
        if state == REL:
            assert data == b"\x62\x02" + (i + 1).to_bytes(2, "big")
        found.append((i + 1, state, b"" if state == DONE else data))
    return found


def _qos2_ids(box: JournalOutbox) -> list[int]:
    ids = sorted(packet_id for packet_id in box.ids if packet_id)
    assert len(ids) == len(set(ids))
    return ids


def journal(data: bytes) -> None:
    """It is read, and works; written and read again, it is what it was."""
    script = Script(data)
    raw = script.byte() & 1
    slots, size = 1 + script.below(9), 20 + script.byte()
    image = script.rest() if raw else _image(script)
    file = MemoryFile(image)
    box = JournalOutbox(file, size, slots, RECEIVE_WINDOW, LIMIT)
    assert box.count <= box.slots and len(box.state) == box.slots
    assert len(box.buf) <= size + len(image) and len(box.ids) <= RECEIVE_WINDOW + len(image)
    assert box.torn + box.damaged <= len(image)
    assert box.unreadable == (file.aside is not None)
    if box.unreadable:
        # Nothing is thrown away.
        assert file.aside == image and not box.count
    _reads_again(box, file)
    # And it goes on: a message more, if there is room, and the oldest one acknowledged.
    at = box.reserve(8)
    if at >= 0:
        box.buf[at : at + 8] = b"\x32\x06\x00\x01t" + (box.next + 1).to_bytes(2, "big") + b"x"
        assert box.commit(8, AT1) >= 0
    if box.count and box.state[box.head] == AT1:
        assert box.set(box.head, DONE) == 0
    assert box.opened(7) == 0 and box.sync() == 0
    _reads_again(box, file)


def _reads_again(box: JournalOutbox, file: MemoryFile) -> None:
    assert box.error is None
    if box.sync():
        raise AssertionError("it cannot be synced")
    again = JournalOutbox(MemoryFile(file.kept), len(box.buf), box.slots, RECEIVE_WINDOW, LIMIT)
    assert not (again.torn or again.damaged or again.unreadable)
    # A record that is missing without a trace is named until the file is written anew.
    assert again.lost == [] or again.lost == box.lost
    assert _undone(_content(again)) == _undone(_content(box))
    assert (_qos2_ids(again), again.fresh, again.slots) == (_qos2_ids(box), box.fresh, box.slots)


def _undone(content: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Without what is acknowledged, and without DUP, which is set on what is read again."""
    return [
        (packet_id, state, data if state == REL else bytes([data[0] & ~8]) + data[1:])
        for packet_id, state, data in content
        if state != DONE
    ]
