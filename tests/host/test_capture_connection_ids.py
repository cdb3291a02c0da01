"""Connection ids: none twice, though the clock is set back, stands still, or the machine has none."""

import asyncio
from pathlib import Path

import pytest

from headwater_host.capture.asyncio_writer import AsyncCapture
from headwater_host.capture.connection_ids import BITS, NAME, ConnectionIds
from headwater_host.gateway.recording import Recorder
from headwater_host.lifetime import MACHINE, Clocks
from tests.host.capture_logs import BEGIN_NS, write_log

MS = 1_000_000
DAY = 86_400_000 * MS
BEGIN = 1_700_000_000_000 * MS


def test_ids_rise_whatever_the_clock_says(tmp_path: Path) -> None:
    last = 0
    for step in (0, 0, -8 * DAY, DAY, -BEGIN, 9 * DAY):
        ids = ConnectionIds(tmp_path, lambda step=step: BEGIN + step)  # type: ignore[misc]
        for _ in range(3):
            found = ids.next()
            assert found > last
            last = found
    assert last >> BITS == (BEGIN + 9 * DAY) // MS
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME]


def test_ids_of_two_gateways_differ(tmp_path: Path) -> None:
    found = set()
    for n in range(2):
        (tmp_path / str(n)).mkdir()
        found.add(ConnectionIds(tmp_path / str(n), lambda n=n: BEGIN + n * MS).next())  # type: ignore[misc]
    assert found == {BEGIN // MS << BITS, BEGIN // MS + 1 << BITS}


def test_a_counter_that_is_used_up_takes_another_start(tmp_path: Path) -> None:
    ids = ConnectionIds(tmp_path, lambda: BEGIN)
    first = ids.next()
    last = first
    for _ in range((1 << BITS) - 1):
        last = ids.next()
    assert last == first + (1 << BITS) - 1
    assert ids.next() == last + 1
    # It is written down: the next start comes behind it.
    assert ConnectionIds(tmp_path, lambda: BEGIN - DAY).next() == first + (2 << BITS)


def test_a_log_of_an_earlier_program(tmp_path: Path) -> None:
    write_log(tmp_path, [2, 3], [1])
    assert ConnectionIds(tmp_path, lambda: BEGIN_NS - DAY).next() >> BITS > BEGIN_NS // MS


def test_a_file_that_holds_no_number(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\0" * 14)
    with pytest.raises(ValueError, match="does not contain a number"):
        ConnectionIds(tmp_path)


def test_a_start_that_cannot_be_written_down_is_none(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        ConnectionIds(tmp_path)


def test_a_gateway_that_is_started_again_with_its_clock_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connections() -> list[int]:
        async with AsyncCapture(tmp_path) as capture:
            recorder = Recorder(capture, 1 << 20, lambda error: None)
            return [recorder.new_connection() for _ in range(100)]

    assert type(MACHINE) is Clocks
    before = asyncio.run(connections())
    monkeypatch.setattr("time.time_ns", lambda: BEGIN)
    again = [*asyncio.run(connections()), *asyncio.run(connections())]
    assert len({*before, *again}) == 300
    assert min(again) > max(before)
