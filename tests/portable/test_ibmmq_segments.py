# heap: 1M
"""Payloads cut into segments on a board: what comes out, put together by a simple reader, is what went in."""

import struct

from kept import Kept
from segmenting import LAST, NONE, PIECE, SEGMENT, SOURCES, TOPIC, Stream, joined, made, mde, payload_of, sent

from headwater.errors import E_AGAIN, E_ARGUMENT, E_CLOSED, E_OFFLINE, E_QOS, E_STATE, E_TOO_LARGE, E_WINDOW
from headwater.ibmmq.header import MDE_FORMAT, sniff
from headwater.ibmmq.segments import DONE, E_EARLY, E_LATE, LATER, MORE, MOST, Segmenter
from headwater.mqtt.backlog import Backlog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def test_every_length_around_every_piece() -> None:
    for n in range(3 * PIECE + 2):
        data = payload_of(n)
        for source in SOURCES:
            for length in (None, n):
                s = made()
                assert s.begin(TOPIC, source(data), length, 2) == 0
                assert sent(s) == DONE, (n, length)
                calls = s.client.calls
                assert [(topic, qos) for topic, _, qos in calls] == [(TOPIC, 2)] * len(calls)
                ((group, sequence, flags, got),) = joined([payload for _, payload, _ in calls])
                assert (got, sequence, flags) == (data, 1, 0), (n, length)
                # As few as can be; but who does not know the length finds out too late that a piece was the last.
                few = max(1, (n + PIECE - 1) // PIECE)
                assert len(calls) == (few + 1 if length is None and n and n % PIECE == 0 else few), (
                    n,
                    length,
                )
                assert (group == NONE) == (len(calls) == 1)
                assert s.step() == E_STATE


def test_whatever_a_source_gives_at_a_time() -> None:
    data = payload_of(3 * PIECE + 9)
    for script in (
        (1,) * 200,
        (0, 5, 0, 0, 27, 31, 1, 0),
        (17, 15, 16, 16, 33),
        (0,) * 9,
        (31, 0, 1, 0, 32, 0, 40),
    ):
        for source in SOURCES:
            for length in (None, len(data)):
                s = made()
                assert s.begin(TOPIC, source(data, script), length) == 0
                statuses: list[int] = []
                while not statuses or statuses[-1] > 0:
                    statuses.append(s.step())
                    assert len(statuses) < 100
                assert statuses[-1] == DONE
                assert statuses.count(LATER) == script.count(0), script
                assert statuses.count(MORE) == 3
                assert joined([call[1] for call in s.client.calls])[0][3] == data


def test_one_publish_a_step() -> None:
    s = made()
    s.begin(TOPIC, Stream(payload_of(100)), 100)
    for n, status in enumerate((MORE, MORE, MORE, DONE)):
        assert s.offset == n * PIECE
        assert s.step() == status
        assert len(s.client.calls) == n + 1


def test_a_client_that_has_to_wait_gets_the_same_again() -> None:
    for later in (E_WINDOW, E_AGAIN, E_OFFLINE, E_CLOSED):
        for length in (None, 100):
            s = made()
            s.begin(TOPIC, Stream(payload_of(100)), length)
            statuses = []
            for _ in range(4):
                s.client.answers = [later, later]
                statuses += [s.step(), s.step(), s.step()]
            assert statuses == [LATER, LATER, MORE] * 3 + [LATER, LATER, DONE]
            assert s.client.calls_refused == 8
            assert joined([call[1] for call in s.client.calls])[0][3] == payload_of(100)


def test_a_source_is_not_asked_while_the_client_has_to_wait() -> None:
    for length in (None, 40):
        s = made()
        stream = Stream(payload_of(40), (32, 8))
        s.begin(TOPIC, stream, length)
        assert s.step() == MORE
        s.client.answers = [E_WINDOW, E_TOO_LARGE]
        assert s.step() == LATER
        # Whatever it would say now, it has said that this was its end.
        stream.data += b"more"
        assert [s.step(), s.step()] == [E_TOO_LARGE, DONE]
        assert joined([call[1] for call in s.client.calls])[0][3] == payload_of(40)


def test_a_number_of_the_message_is_a_success() -> None:
    s = made()
    s.client.answers = [1, 2, 65280, 3]
    s.begin(TOPIC, Stream(payload_of(100)), 100)
    assert [s.step() for _ in range(4)] == [MORE, MORE, MORE, DONE]


def test_an_error_of_the_client_changes_nothing() -> None:
    s = made()
    s.client.answers = [0, E_TOO_LARGE, E_QOS, 0]
    s.begin(TOPIC, Stream(payload_of(100)), 100)
    assert [s.step() for _ in range(5)] == [MORE, E_TOO_LARGE, E_QOS, MORE, MORE]
    assert s.begin(TOPIC, Stream(b"")) == E_STATE and s.begin_group() == E_STATE
    assert s.step() == DONE
    assert joined([call[1] for call in s.client.calls])[0][3] == payload_of(100)


def test_a_source_that_is_not_as_long_as_was_said() -> None:
    sizes = (0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 1)
    for n in sizes:
        for length in sizes:
            for source in SOURCES:
                s = made()
                s.begin(TOPIC, source(payload_of(n), (n, 0, 0)), length)
                want = DONE if n == length else E_EARLY if n < length else E_LATE
                assert sent(s) == want, (n, length)
                assert s.step() == (E_STATE)
                if n != length:
                    # What has left has no end.
                    assert {mde(call[1])[3] for call in s.client.calls} <= {SEGMENT}, (n, length)


def test_what_raises_ends_the_message() -> None:
    class Broken(Stream):
        def readinto(self, buf: "Any") -> "int | None":
            if self.at >= 40:
                raise OSError(5)
            return super().readinto(buf)

    s = made()
    s.begin(TOPIC, Broken(payload_of(100)), 100)
    assert s.step() == MORE
    assert s.step() == MORE
    try:
        s.step()
        raise AssertionError("nothing was raised")
    except OSError:
        pass
    assert s.step() == E_STATE
    s.client.calls = []
    assert s.begin(TOPIC, Stream(b"next")) == 0 and sent(s) == DONE
    assert joined([call[1] for call in s.client.calls])[0][3] == b"next"


def test_answers_of_a_source_that_are_none() -> None:
    for answer in (-1, PIECE + 1, 1 << 20):
        for at in (72, 72 + 5):
            s = made()
            asked: list[int] = []

            def source(
                buf: bytearray,
                where: int,
                n: int,
                answer: int = answer,
                at: int = at,
                asked: list[int] = asked,
            ) -> int:
                asked.append(where)
                return answer if where == at else 5

            s.begin(TOPIC, source)
            assert sent(s) == E_ARGUMENT and asked[-1] == at
            assert not s.client.calls and s.step() == E_STATE


def test_answers_of_a_stream_that_are_none() -> None:
    class Answers:
        def __init__(self, *answers: int):
            self.answers = list(answers)

        def readinto(self, buf: "Any") -> int:
            return self.answers.pop(0)

    # To a whole piece; behind a short read, to 16 bytes and to one; and to whether there is more behind the length.
    for before, most in (((), PIECE), ((8,), 16), ((24,), 1), ((PIECE,), 1)):
        for answer in (-1, -5, -16, -PIECE, most + 1, most + 8):
            s = made()
            assert s.begin(TOPIC, Answers(*before, answer, 0), PIECE) == 0
            assert sent(s) == E_ARGUMENT, (before, answer)
            assert not s.client.calls and s.step() == E_STATE
            # Nor is anything of it in the next message.
            assert s.begin(TOPIC, Stream(payload_of(40))) == 0 and sent(s) == DONE
            assert joined([call[1] for call in s.client.calls])[0][3] == payload_of(40)
    s = made()
    assert s.begin(TOPIC, lambda buf, at, n: n if n == PIECE else -1, PIECE) == 0
    assert s.step() == E_ARGUMENT
    s = made()
    assert s.begin(TOPIC, lambda buf, at, n: n) == 0 and s.step() == MORE
    s.offset = MOST - PIECE
    assert s.step() == MORE
    s.offset = MOST - PIECE + 1
    assert s.step() == E_TOO_LARGE


def test_refusals() -> None:
    s = made()
    assert s.step() == E_STATE
    assert s.begin(TOPIC, Stream(b""), -1) == E_ARGUMENT
    assert s.begin(TOPIC, b"bytes are no stream") == E_ARGUMENT
    assert s.begin(TOPIC, None) == E_ARGUMENT
    assert s.begin(TOPIC, Stream(b""), last=True) == E_STATE
    assert s.begin(TOPIC, Stream(b"")) == 0
    assert s.begin(TOPIC, Stream(b"")) == E_STATE and s.begin_group() == E_STATE
    assert sent(s) == DONE and len(s.client.calls) == 1
    for size in (0, 71, 72, 87):
        try:
            made(size=size)
            raise AssertionError(size)
        except ValueError:
            pass
    wrong: list[dict[str, Any]] = [
        {"format": b"NINE LONG"},
        {"format": b"$"},
        {"data_ccsid": -1},
        {"data_ccsid": -3},
        {"ccsid": -2, "data_ccsid": 0, "format": b"MQSTR!"},
    ]
    for options in wrong:
        try:
            made(**options)
            raise AssertionError(options)
        except ValueError:
            pass


def test_a_backlog_is_refused() -> None:
    k = Kept(backlog=Backlog(1000, 8))
    try:
        made(k.keeper)
        raise AssertionError("a backlog was taken")
    except ValueError:
        pass


def test_of_a_larger_buffer_a_multiple_of_16_is_used() -> None:
    for size, piece in ((88, 16), (103, 16), (104, 32), (1024, 944), (1016, 944)):
        s = made(size=size)
        assert s.piece == piece
        s.begin(TOPIC, Stream(payload_of(2000)), 2000)
        assert sent(s) == DONE
        assert joined([call[1] for call in s.client.calls], piece)[0][3] == payload_of(2000)


# -- the limits of IBM's fields ----------------------------------------------------------------------------------------


class Endless:
    """As many bytes as are wanted, of which none is written."""

    def __init__(self, left: int):
        self.left = left

    def readinto(self, buf: "Any") -> int:
        n = min(len(buf), self.left)
        self.left -= n
        return n


def sent_to(s: Segmenter, source: Endless, offset: int) -> None:
    """A step, and then as if it had been many."""
    assert s.step() == MORE
    source.left -= offset - s.offset
    s.offset = offset


#: 62,500 times this is 10**9.
WIDE = 16000


def test_up_to_the_largest_message() -> None:
    for length in (MOST, 10**9 - WIDE + 1, 10**9 - WIDE):
        for said in (length, None):
            s = made(size=72 + WIDE)
            source = Endless(length)
            assert s.begin(TOPIC, source, said) == 0
            sent_to(s, source, 10**9 - 3 * WIDE)
            assert sent(s) == DONE
            assert sum([len(call[1]) - 72 for call in s.client.calls[1:]]) == length - (10**9 - 3 * WIDE)
            # An empty segment follows only where the end is not known.
            messages = 3 if length > 10**9 - WIDE or said is None else 2
            assert len(s.client.calls) == 1 + messages
            assert mde(s.client.calls[-1][1])[2:] == (10**9 + (messages - 4) * WIDE, LAST)


def test_beyond_the_largest_message() -> None:
    s = made(size=72 + WIDE)
    for length in (10**9, 1 << 30, 1 << 40):
        assert s.begin(TOPIC, Endless(length), length) == E_TOO_LARGE
        assert s.step() == E_STATE
    source = Endless(10**9)
    assert s.begin(TOPIC, source) == 0
    sent_to(s, source, 10**9 - 3 * WIDE)
    assert sent(s) == E_TOO_LARGE
    assert mde(s.client.calls[-1][1])[2:] == (10**9 - 2 * WIDE, SEGMENT)
    assert s.step() == E_STATE


# -- how it is written -------------------------------------------------------------------------------------------------


def test_orders_and_character_sets() -> None:
    ebcdic = {"ccsid": 500, "format": b"MQSTR"}
    wanted: list[tuple[dict[str, Any], int, bytes, bytes]] = [
        ({}, 1, b"MDE ", struct.pack(">ii8s", 0x111, 819, b"        ")),
        ({"big": False}, 2, b"MDE ", struct.pack("<ii8s", 0x222, 819, b"        ")),
        (
            {"format": b"MQSTR", "data_ccsid": 1208},
            1,
            b"MDE ",
            struct.pack(">ii8s", 0x111, 1208, b"MQSTR   "),
        ),
        ({"encoding": 0x222, "data_ccsid": -2}, 1, b"MDE ", struct.pack(">ii8s", 0x222, -2, b"        ")),
        (
            ebcdic,
            5,
            b"\xd4\xc4\xc5\x40",
            struct.pack(">ii8s", 0x111, 500, b"\xd4\xd8\xe2\xe3\xd9\x40\x40\x40"),
        ),
        (
            {"big": False, "ccsid": 1047},
            6,
            b"\xd4\xc4\xc5\x40",
            struct.pack("<ii8s", 0x222, 1047, b"\x40" * 8),
        ),
    ]
    for options, form, name, description in wanted:
        s = made(**options)
        big = options.get("big", True)
        s.begin(TOPIC, Stream(payload_of(100)))
        assert sent(s) == DONE
        calls = [call[1] for call in s.client.calls]
        for call in calls:
            assert call[:4] == name and call[12:28] == description, options
            assert sniff(call, 0, len(call)) == form
        assert joined(calls, big=big)[0][3] == payload_of(100)


def test_format_may_change_between_messages() -> None:
    s = made()
    for name in (b"MQSTR   ", b"MYFORMAT"):
        assert s.header.put_name(MDE_FORMAT, name) == 0
        s.begin(TOPIC, Stream(payload_of(40)))
        assert sent(s) == DONE
        assert s.client.calls[-1][1][20:28] == name
