# heap: 1M
"""Messages of a group, as segments and whole, and the ids that boards give to groups."""

from segmenting import IN_GROUP, LAST_IN_GROUP, NONE, TOPIC, Stream, joined, made, mde, payload_of, sent

from headwater.errors import E_STATE, E_TOO_LARGE, E_TOPIC
from headwater.ibmmq.segments import DONE, E_EARLY, MORE, MOST, GroupIds


def test_a_group_has_an_end() -> None:
    s = made()
    s.begin_group()
    s.sequence = MOST
    assert s.begin(TOPIC, Stream(b"")) == 0 and sent(s) == DONE
    assert mde(s.client.calls[0][1])[1] == MOST
    assert s.begin(TOPIC, Stream(b"")) == E_TOO_LARGE


def test_groups() -> None:
    s = made()
    assert s.begin(TOPIC, Stream(payload_of(50))) == 0 and sent(s) == DONE
    for _ in range(2):
        assert s.begin_group() == 0
        for n in (10, 100, 0, 64):
            assert s.begin(TOPIC, Stream(payload_of(n)), n, 1, n == 64) == 0
            assert sent(s) == DONE
    assert s.begin(TOPIC, Stream(payload_of(9))) == 0 and sent(s) == DONE
    found = joined([call[1] for call in s.client.calls])
    groups = [found[0][0], found[1][0], found[5][0], NONE]
    assert len(set(groups)) == 4 and NONE not in groups[:3]
    wanted = [(groups[0], 1, 0, payload_of(50))]
    for group in groups[1:3]:
        wanted += [(group, 1, IN_GROUP, payload_of(10)), (group, 2, IN_GROUP, payload_of(100))]
        wanted += [(group, 3, IN_GROUP, b""), (group, 4, LAST_IN_GROUP, payload_of(64))]
    assert found == wanted + [(NONE, 1, 0, payload_of(9))]


def test_a_group_has_one_topic() -> None:
    s = made()
    s.begin_group()
    assert s.begin(b"a", Stream(b"1")) == 0 and sent(s) == DONE
    assert s.begin(b"b", Stream(b"2")) == E_TOPIC
    assert s.begin(b"a", Stream(b"2"), last=True) == 0 and sent(s) == DONE
    assert s.begin(b"b", Stream(b"3")) == 0 and sent(s) == DONE
    s.begin_group()
    assert s.begin(b"c", Stream(b"4"), last=True) == 0 and sent(s) == DONE


def test_a_message_of_a_group_is_begun_again_in_its_place() -> None:
    s = made()
    s.begin_group()
    assert s.begin(TOPIC, Stream(payload_of(40)), 40) == 0 and sent(s) == DONE
    assert s.begin(TOPIC, Stream(payload_of(70)), 100) == 0 and sent(s) == E_EARLY
    assert s.begin(TOPIC, Stream(payload_of(100)), 100, last=True) == 0 and sent(s) == DONE
    calls = [call[1] for call in s.client.calls]
    # The two segments that had left, of which only the flags of the group are not the same.
    assert [call[72:] for call in calls[2:4]] == [call[72:] for call in calls[4:6]]
    found = joined(calls[:2] + calls[4:])
    assert [one[1:] for one in found] == [(1, IN_GROUP, payload_of(40)), (2, LAST_IN_GROUP, payload_of(100))]
    assert {mde(call)[0] for call in calls} == {found[0][0]}


def test_abandon_gives_up_the_group_as_well() -> None:
    s = made()
    s.begin_group()
    s.begin(TOPIC, Stream(payload_of(100)))
    assert s.step() == MORE
    s.abandon()
    assert s.step() == E_STATE and s.sequence == 0
    s.client.calls = []
    assert s.begin(TOPIC, Stream(payload_of(5))) == 0 and sent(s) == DONE
    assert joined([call[1] for call in s.client.calls]) == [(NONE, 1, 0, payload_of(5))]


def test_every_segmented_message_has_its_own_id() -> None:
    s = made()
    for _ in range(60):
        assert s.begin(TOPIC, Stream(payload_of(40)), 40) == 0 and sent(s) == DONE
    assert len({one[0] for one in joined([call[1] for call in s.client.calls])}) == 60


# -- group ids ---------------------------------------------------------------------------------------------------------


def next_of(ids: GroupIds) -> bytes:
    buf = bytearray(b"\x55" * 30)
    assert ids.put_next(buf, 3) == 27
    assert buf[:3] == b"\x55" * 3 == buf[27:]
    return bytes(buf[3:27])


def test_group_ids_say_whose_they_are() -> None:
    assert next_of(GroupIds(b"\x01\x02\x03\x04\x05\x06", b"\xaa\xbb")) == (
        b"\x66\x01\x02\x03\x04\x05\x06" + bytes(5) + bytes(6) + b"\xaa\xbb" + b"\0\0\0\x01"
    )
    boards = [b"", b"\0", b"\0\0", b"a", b"a\0", b"\0a", b"ab", bytes(10), bytes(11), bytes(10) + b"a"]
    # Longer ones are folded; of one maker's lot, they differ in a byte or two.
    for n in (12, 16, 24):
        boards.append(payload_of(n))
        boards += [
            boards[-1][:i] + bytes([boards[-1][i] ^ 1 << i % 8]) + boards[-1][i + 1 :] for i in range(n)
        ]
    assert len(boards) == 10 + 3 + 12 + 16 + 24
    assert len({next_of(GroupIds(board, b"\x01")) for board in boards}) == len(boards)
    boots = [bytes([0, 1]), bytes([1, 0]), bytes([1, 0, 0]), b"\x02", b"\xff" * 8, b"\xff" * 7]
    assert len({next_of(GroupIds(b"board", boot)) for boot in boots}) == len(boots)


def test_group_ids_are_none_that_a_queue_manager_makes() -> None:
    for board in (b"", bytes(11), b"AMQ ", b"CSQ board", b"\xc1\xd4\xd8\x40", b"\0" * 24, b"\xff" * 24):
        ident = next_of(GroupIds(board, b"\0" * 8))
        assert ident != NONE and len(ident) == 24
        assert ident[:3] not in (b"AMQ", b"CSQ", b"\xc1\xd4\xd8", b"\xc3\xe2\xd8")


def test_group_ids_count() -> None:
    ids = GroupIds(b"board", b"\x01")
    first = next_of(ids)
    for n in range(2, 600):
        ident = next_of(ids)
        assert ident[:20] == first[:20] and int.from_bytes(ident[20:], "big") == n


def test_group_ids_need_a_boot() -> None:
    for boot in (b"", b"\x01" * 9):
        try:
            GroupIds(b"board", boot)
            raise AssertionError(boot)
        except ValueError:
            pass
