"""FMQ's way into the capture log: whole frames, however they arrive, and what is none."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from headwater.errors import E_FLAGS, E_LENGTH, E_RX_TOO_LARGE, E_TYPE
from headwater.fmq.decode import Frame, frame, header
from headwater.fmq.names import REASONS
from headwater.reasons import reason
from headwater_host.capture import CaptureReader
from headwater_host.capture.asyncio_writer import AsyncCapture
from headwater_host.gateway.fmq import GARBAGE, MAX_BODY, Splitter, Tap
from headwater_host.gateway.landing import Landing

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/fmq.json").read_text(encoding="utf-8"))
FRAMES = [bytes.fromhex(row["hex"]) for row in VECTORS["frames"]]
MALFORMED = [(bytes.fromhex(row["hex"]), row["reason"]) for row in VECTORS["malformed_frames"]]
STREAM = b"".join(FRAMES)
IDENT = bytes.fromhex("310103b015cd4e2b845bd718")
PUBLISH = FRAMES[4]


def split(pieces: list[bytes], splitter: Splitter) -> list[bytes]:
    return [found for piece in pieces for found in splitter.feed(piece)]


def test_whole_and_byte_by_byte() -> None:
    assert Splitter().feed(STREAM) == FRAMES
    one = Splitter()
    assert split([STREAM[at : at + 1] for at in range(len(STREAM))], one) == FRAMES
    assert (one.rest(), one.error) == (b"", 0)


def test_in_any_pieces() -> None:
    rng = random.Random(5)
    for _ in range(200):
        cuts = sorted(rng.randrange(len(STREAM)) for _ in range(rng.randrange(1, 60)))
        pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert split(pieces, Splitter()) == FRAMES


def test_a_frame_is_there_with_its_last_byte() -> None:
    for data in FRAMES:
        splitter = Splitter()
        for at in range(len(data) - 1):
            assert splitter.feed(data[at : at + 1]) == []
        assert splitter.rest() == data[:-1][:GARBAGE]
        assert splitter.feed(data[-1:]) == [data]


@pytest.mark.parametrize("data, why", MALFORMED)
def test_malformed_headers_end_it_and_bodies_do_not(data: bytes, why: str) -> None:
    """What is wrong with a header is the core's verdict; what is wrong with a body shows when the frame is decoded."""
    splitter = Splitter()
    found = splitter.feed(PUBLISH + data)
    if len(found) == 2:
        assert splitter.error == 0
        assert found[1] == data
        stop = frame(Frame(data, MAX_BODY), 0, len(data))
        assert reason(stop, REASONS) == why
    else:
        assert found == [PUBLISH]
        assert reason(splitter.error, REASONS) == why
        assert splitter.rest() == data
        assert splitter.feed(FRAMES[0]) == []


def test_no_more_is_held_than_a_frame_can_have() -> None:
    splitter = Splitter(max_body=100)
    head = b"\x30" + IDENT
    assert splitter.feed(head + b"\x16\x06" + bytes(102)) == []
    assert splitter.error == E_RX_TOO_LARGE
    fits = head + b"\x14\x06" + bytes(100)
    assert Splitter(max_body=100).feed(fits) == [fits]
    garbage = Splitter()
    assert garbage.feed(b"\x40" + bytes(2 * GARBAGE)) == []
    assert (garbage.error, len(garbage.rest())) == (E_TYPE, GARBAGE)


def test_a_large_frame_in_small_pieces_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look(f: Frame, at: int, end: int) -> int:
        looks.append(end)
        return header(f, at, end)

    monkeypatch.setattr("headwater_host.gateway.fmq.header", look)
    size = 1 << 20
    large = b"\x30" + IDENT + b"\x30" + (size >> 4).to_bytes(3, "little") + bytes(size)
    splitter = Splitter()
    found = split([large[at : at + 1000] for at in range(0, len(large), 1000)], splitter)
    assert found == [large]
    assert len(looks) == 2


def test_messages_are_landed_with_what_the_log_says_of_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        capture = AsyncCapture(tmp_path)
        async with capture:
            landing = Landing(capture, 1 << 20, lambda error: None)
            device = Tap(landing, "fmq:192.0.2.7:40000")
            assert device.feed(STREAM[:100]) == 0
            assert device.feed(STREAM[100:]) == 0
            assert device.number == landing.records > 0
            out = Tap(landing, "fmq:192.0.2.7:40000", direction=1)
            assert out.feed(PUBLISH + b"\x51" + IDENT) == E_FLAGS
            assert out.feed(PUBLISH) == E_FLAGS
            assert device.connection != out.connection
            long = Tap(landing, "fmq:192.0.2.8:40000")
            assert long.feed(b"\x30" + IDENT + b"\xf0") == E_LENGTH
            done = asyncio.Event()
            landing.when_durable(long.number, done.set)
            await asyncio.wait_for(done.wait(), 20)

    asyncio.run(scenario())
    records = list(CaptureReader(tmp_path).records())
    messages = [data for data in FRAMES if data[0] >> 4 in (3, 11)]
    assert [record.frame for record in records] == [
        *messages,
        PUBLISH,
        b"\x51" + IDENT,
        b"\x30" + IDENT + b"\xf0",
    ]
    assert {(record.protocol, record.version) for record in records} == {(2, 0)}
    assert [record.direction for record in records] == [0] * len(messages) + [1, 1, 0]
    assert len({record.connection for record in records}) == 3
