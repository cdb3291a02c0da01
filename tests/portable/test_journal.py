# heap: 4M
"""The journal behind an outbox: read again, cut short at every byte, damaged at every byte, without room."""

import sys

from journal_file import MemoryFile, PowerCutError
from pipe import Random

from headwater.connection import AT1, AT2, DONE, FREE, REL
from headwater.errors import E_STORE
from headwater.journal import JournalOutbox, crc30

LIMIT = 260


def make(file: MemoryFile, size: int = 120, slots: int = 5, sync_every: int = 1) -> JournalOutbox:
    return JournalOutbox(file, size, slots, 3, LIMIT, sync_every)


def packet(packet_id: int, qos: int, mark: int) -> bytes:
    """PUBLISH with a topic of one byte and a payload of two to five."""
    body = b"\x00\x01t" + packet_id.to_bytes(2, "big") + bytes([mark & 255]) * (2 + mark % 4)
    return bytes([0x30 | qos << 1, len(body)]) + body


def publish(box: JournalOutbox, qos: int, mark: int) -> int:
    """The entry's index, -1 when there is no room in memory, E_STORE when there is none in the file system."""
    data = packet(box.next + 1, qos, mark)
    at = box.reserve(len(data))
    if at < 0:
        return -1
    box.buf[at : at + len(data)] = data
    return box.commit(len(data), qos)


def release(box: JournalOutbox, i: int) -> int:
    """As a session does on PUBREC."""
    status = box.set(i, REL)
    if status == 0:
        at = box.at[i]
        box.buf[at : at + 4] = b"\x62\x02" + (i + 1).to_bytes(2, "big")
        box.size[i] = 4
    return status


def content(box: JournalOutbox) -> "list[tuple[int, int, bytes]]":
    """(packet id, state, bytes without DUP) of each entry, oldest first; of acknowledged ones the place only."""
    found = []
    i = box.head
    for _ in range(box.count):
        data = bytearray(box.buf[box.at[i] : box.at[i] + box.size[i]])
        state = box.state[i]
        if state == DONE:
            data = bytearray()
        elif state != REL:
            data[0] &= ~8
        found.append((i + 1, state, bytes(data)))
        i = (i + 1) % box.slots
    return found


def open_ids(box: JournalOutbox) -> "list[int]":
    return sorted([i for i in box.ids if i])


def test_the_checksum() -> None:
    # Of the CRC catalogue's CRC-30/CDMA nothing is reflected and the value inverted; this one against its definition.
    def bitwise(data: bytes) -> int:
        crc = 0x3FFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x38E74301 if crc & 1 else 0)
        return crc

    for data in (b"", b"\x00", b"123456789", bytes(range(256))):
        assert crc30(data, 0, len(data), 0x3FFFFFFF) == bitwise(data)
    assert crc30(b"x123456789y", 1, 10, 0x3FFFFFFF) == bitwise(b"123456789")


def one_step(box: JournalOutbox, random: Random, mark: int) -> None:
    what = random.below(100)
    live = [i for i, state, _ in content(box) if state in (AT1, AT2, REL)]
    if what < 40:
        publish(box, 1 + (what & 1), mark)
    elif what < 80 and live:
        i = live[0 if what < 70 else random.below(len(live))] - 1
        if box.state[i] == AT2:
            assert release(box, i) == 0
        else:
            assert box.set(i, DONE) == 0
    elif what < 90:
        assert box.opened(1 + random.below(4)) == 0
    elif what < 98:
        assert box.closed(1 + random.below(4)) == 0
    elif what == 98:
        assert box.closed(0) == 0
    elif random.below(4) == 0:
        box.clear()


def test_what_was_synced_is_there_again() -> None:
    for seed in range(12):
        random = Random(seed * 31 + 5)
        file = MemoryFile()
        box = make(file)
        for mark in range(150):
            one_step(box, random, mark)
            if random.below(6) == 0:
                assert box.sync() == 0
                before = content(box), open_ids(box), box.fresh
                if random.below(20) == 0:
                    assert box.settle() == 0
                    before = before[0], before[1], False
                file = MemoryFile(file.kept)
                box = make(file)
                assert (content(box), open_ids(box), box.fresh) == before
                assert not box.torn and not box.damaged and not box.lost
                for i, state, _ in before[0]:
                    if state in (AT1, AT2):
                        assert box.buf[box.at[i - 1]] & 8, "maybe it was sent: DUP"
        assert file.rewrites or len(file.kept or b"") <= LIMIT


def test_the_journal_keeps_its_limit() -> None:
    file = MemoryFile()
    box = make(file)
    longest = 0
    for mark in range(400):
        i = publish(box, 1, mark)
        box.set(i, DONE)
        longest = max(longest, len(file.kept or b""))
    assert longest <= LIMIT
    # What a message takes on average: its record, that of its acknowledgement, and a share of a new beginning.
    assert file.rewrites < 400 // 5 and file.written < 400 * (20 + 10 + 10)
    assert file.syncs <= 400


def script(box: JournalOutbox, done: "list[tuple[str, int]]") -> None:
    """Everything a session does, with a new file in between; ``done`` gets what has returned."""

    def add(qos: int, mark: int) -> int:
        i = publish(box, qos, mark)
        assert i >= 0
        done.append(("add", mark))
        return i

    def rel(i: int, mark: int) -> None:
        assert release(box, i) == 0
        done.append(("rel", mark))

    def end(i: int, mark: int) -> None:
        # From here on it may be forgotten.
        done.append(("end", mark))
        assert box.set(i, DONE) == 0

    assert box.settle() == 0
    done.append(("settled", 0))
    for turn in range(3):
        mark = turn * 10 + 1
        a = add(2, mark)
        b = add(1, mark + 1)
        assert box.opened(turn + 1) == 0
        done.append(("opened", turn + 1))
        c = add(2, mark + 2)
        rel(a, mark)
        end(b, mark + 1)
        rel(c, mark + 2)
        end(a, mark)
        done.append(("closing", turn + 1))
        assert box.closed(turn + 1) == 0
        done.append(("closed", turn + 1))
        end(c, mark + 2)
        add(1, mark + 3)


def test_the_power_goes_at_every_byte() -> None:
    file = MemoryFile(cut_after=1 << 20)
    script(make(file, 300, 16), [])
    total = (1 << 20) - file.cut_after
    assert file.rewrites > 1 and total > 300
    for torn in (0, 1, 9, 30):
        # MicroPython meets every byte where nothing remains that was not synced, and samples where something does.
        step = 4 if torn and sys.implementation.name == "micropython" else 1
        for cut in range(torn % step, total, step):
            file = MemoryFile(torn=torn, cut_after=cut)
            done: list[tuple[str, int]] = []
            try:
                script(make(file, 300, 16), done)
                raise AssertionError("the power did not go")
            except PowerCutError:
                pass
            box = make(MemoryFile(file.kept), 300, 16)
            check_after_cut(box, done, (torn, cut))


def check_after_cut(box: JournalOutbox, done: "list[tuple[str, int]]", where: object) -> None:
    assert not box.damaged and not box.lost and not box.unreadable, where
    if ("settled", 0) in done:
        assert not box.fresh, where
    marks = {}
    order = []
    for packet_id, state, data in content(box):
        if state in (AT1, AT2):
            mark = data[7]
            assert data == packet(packet_id, state, mark), where
            marks[mark] = state
            order.append(mark)
    assert order == sorted(order), where
    released = [mark for what, mark in done if what == "rel"]
    ended = [mark for what, mark in done if what == "end"]
    for what, mark in done:
        if what == "add" and mark not in released and mark not in ended:
            # Between the record of REL and the return of ``set``, it may be either.
            assert mark in marks or any(state == REL for _, state, _ in content(box)), (where, mark, "lost")
        elif what == "rel":
            assert mark not in marks, (where, mark, "would be published again")
    ids = open_ids(box)
    for what, packet_id in done:
        if what == "opened" and ("closing", packet_id) not in done:
            assert packet_id in ids, (where, "received again")
        elif what == "closed":
            assert packet_id not in ids, (where, "never received again")


def whole_journal() -> bytes:
    file = MemoryFile()
    box = make(file, 400, 8)
    assert box.settle() == 0
    for mark in range(1, 5):
        publish(box, 1 + mark % 2, mark)
    for packet_id in (7, 300):
        assert box.opened(packet_id) == 0
    assert release(box, 0) == 0
    assert box.set(1, DONE) == 0
    assert box.set(0, DONE) == 0
    assert box.sync() == 0
    assert file.kept is not None
    return file.kept


def test_damage_at_every_byte() -> None:
    """Nothing that was not published goes out; what is missing is named, and its packet id is released."""
    image = whole_journal()
    good = content(make(MemoryFile(image), 400, 8))
    assert [packet_id for packet_id, _, _ in good] == [3, 4]
    # PUBREL of one of the ids may have come, and its record may be the one that is damaged.
    taken = image.index(b"\x05\x01\x2c") + 10
    bad = bytearray(image)
    bad[taken + 1] ^= 1
    assert open_ids(make(MemoryFile(image), 400, 8)) == [7, 300]
    assert open_ids(make(MemoryFile(bytes(bad)), 400, 8)) == []
    for k in range(len(image)):
        for flip in (1, 0x10, 0x80, 0xFF):
            bad = bytearray(image)
            bad[k] ^= flip
            file = MemoryFile(bytes(bad))
            box = make(file, 400, 8)
            assert box.damaged or box.torn, (k, flip, "not reported")
            assert not box.unreadable
            # Otherwise PUBREL for every identifier would release messages that have to be retransmitted.
            assert not box.fresh, (k, flip)
            for packet_id, state, data in content(box):
                if state in (AT1, AT2):
                    mark = data[7]
                    assert 1 <= mark < 5 and data == packet(packet_id, 1 + mark % 2, mark), (k, flip)
            for packet_id, _, _ in good:
                # As it was; or released; the newest ones are not missed by name.
                assert box.state[packet_id - 1] in (AT1, AT2, REL), (k, flip)
                assert box.state[packet_id - 1] != REL or packet_id in box.lost or packet_id == 4, (k, flip)
            # The next life finds a whole journal that says the same.
            again = make(MemoryFile(file.kept), 400, 8)
            assert content(again) == content(box) and open_ids(again) == open_ids(box)
            assert not again.damaged and not again.torn


def test_any_bytes_are_survived() -> None:
    image = whole_journal()
    random = Random(99)
    for _ in range(250):
        bad = bytearray(image)
        for _ in range(1 + random.below(12)):
            at = random.below(len(bad))
            what = random.below(4)
            if what == 0:
                bad[at] = random.below(256)
            elif what == 1:
                bad = bad[:at] + bad[at + random.below(40) :]
            elif what == 2:
                bad = bad[:at] + image[random.below(60) : 60 + random.below(100)] + bad[at:]
            else:
                bad += bytes([random.below(256)])
            if len(bad) < 2:
                bad += b"\x01\x02"
        file = MemoryFile(bytes(bad))
        box = make(file, 400, 8)
        for packet_id, state, data in content(box):
            if state in (AT1, AT2):
                assert data == packet(packet_id, state, data[7])
        # It works on.
        while box.count:
            box.set(box.head, DONE)
        assert publish(box, 1, 3) >= 0
        assert content(make(MemoryFile(file.kept), 400, 8))[-1][2] == packet(box.next or box.slots, 1, 3)


def test_what_is_no_journal_is_set_aside() -> None:
    for text in (b"", b"x", b"ssid = home\npassword = secret\n" * 20):
        file = MemoryFile(text)
        box = make(file)
        assert file.aside == text and box.unreadable and box.fresh
        assert publish(box, 1, 1) == 0
        assert len(content(make(MemoryFile(file.kept)))) == 1


def test_a_file_system_that_is_full() -> None:
    """E_STORE, and nothing of the change remains; when there is room again, everything goes on."""
    try:
        raise AssertionError(make(MemoryFile(room=20)))
    except OSError as error:
        code = error.args[0]
    assert code == 28
    for room in range(22, 200):
        file = MemoryFile(room=room)
        box = make(file, 400, 20)
        accepted = []
        for mark in range(1, 20):
            before = content(box), box.next, box.count
            i = publish(box, 1 + mark % 2, mark)
            if i >= 0:
                accepted.append(mark)
            else:
                assert i == E_STORE and box.error is not None and box.error.args[0] == 28
                assert (content(box), box.next, box.count) == before
        assert len(accepted) < 19
        kept = content(make(MemoryFile(file.kept), 400, 20))
        assert [data[7] for _, _, data in kept] == accepted
        if accepted and box.state[0] == AT2:
            assert release(box, 0) == E_STORE and box.state[0] == AT2
        assert box.opened(9) == E_STORE and open_ids(box) == []
        assert box.settle() == E_STORE and box.fresh
        file.room = -1
        assert box.opened(9) == 0 and box.closed(9) == 0 and box.settle() == 0
        assert publish(box, 1, 99) >= 0
        kept = content(make(MemoryFile(file.kept), 400, 20))
        assert [data[7] for _, _, data in kept] == accepted + [99]


def test_synced_later() -> None:
    """With ``sync_every``, the last messages at QoS 1 may be lost, in their order; at QoS 2 none."""
    file = MemoryFile()
    box = JournalOutbox(file, 400, 20, limit=1000, sync_every=4)
    kept = []
    for mark in range(1, 13):
        publish(box, 2 if mark == 6 else 1, mark)
        kept.append(len(content(make(MemoryFile(file.kept), 400, 20))))
    assert kept == [0, 0, 0, 4, 4, 6, 6, 6, 6, 10, 10, 10]
    assert box.unsynced == 2 and box.sync() == 0 and box.unsynced == 0
    assert len(content(make(MemoryFile(file.kept), 400, 20))) == 12


def test_synced_by_the_clock() -> None:
    file = MemoryFile()
    box = JournalOutbox(file, 400, 20, sync_every=100, sync_ms=500)
    syncs = file.syncs
    now = (1 << 30) - 700
    for step in range(10):
        assert box.tick((now + step * 100) & 0x3FFFFFFF) == 0
        if step == 1:
            publish(box, 1, 1)
        assert file.syncs == syncs + (1 if step >= 6 else 0), step


def test_options_that_change() -> None:
    """While there are messages, the number of slots stays; the ring is as large as they need."""
    file = MemoryFile()
    box = make(file, 120, 5)
    for mark in range(4):
        assert publish(box, 1, mark) >= 0
    before = content(box)
    file = MemoryFile(file.kept)
    box = make(file, 20, 9)
    assert box.slots == 5 and content(box) == before
    for i in range(4):
        box.set(i, DONE)
    assert box.sync() == 0
    box = make(MemoryFile(file.kept), 20, 9)
    assert box.slots == 9 and len(box.buf) == 20 and bytes(box.state) == bytes([FREE] * 9)


def test_messages_of_another_protocol() -> None:
    def opened(protocol: int) -> JournalOutbox:
        return JournalOutbox(file, 120, 5, 3, LIMIT, protocol=protocol)

    file = MemoryFile()
    for protocol, other in ((0, 0), (4, 5), (5, 4)):
        box = opened(protocol)
        publish(box, 1, 1)
        box.close()
        before = file.load()
        if other:
            try:
                opened(other)
                raise AssertionError("opened")
            except ValueError:
                pass
            assert file.load() == before
        # Who does not say it takes what is there, and the file keeps what it says.
        box = opened(0)
        assert box.count == 1 and box.protocol == protocol
        box.compact()
        box.close()
        box = opened(protocol)
        assert box.count == 1
        box.set(box.head, DONE)
        box.close()
    # What was made without it says nothing.
    file = MemoryFile()
    box = opened(0)
    publish(box, 1, 1)
    box.close()
    box = opened(5)
    assert box.count == 1 and box.protocol == 0
    box.set(box.head, DONE)
    box.close()
    box = opened(5)
    publish(box, 1, 1)
    box.close()
    assert opened(5).protocol == 5


def test_more_ids_than_were_expected() -> None:
    file = MemoryFile()
    box = make(file)
    for packet_id in range(1, 30):
        assert box.opened(packet_id) == 0 and box.opened(packet_id) == 0
    box = make(MemoryFile(file.kept))
    assert open_ids(box) == list(range(1, 30))


def test_bad_arguments() -> None:
    for options in ((0, 0), (-1, 0), (1, -1)):
        try:
            JournalOutbox(MemoryFile(), 100, 4, 3, 400, options[0], options[1])
        except ValueError:
            continue
        raise AssertionError(options)
