"""Message ids by a computer's clock, and the tables that hold them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import E_ARGUMENT
from headwater.fmq import spec
from headwater.fmq.ids import IdTable, id_end
from headwater_host.client.fmq.ids import RESERVE, ChosenIdMaker, ClockIdMaker, HostIdTable


def time_of(ident: bytes) -> int:
    return int.from_bytes(ident[-8:], "little")


def test_ids_go_up_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_900_000_000_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    kept: list[tuple[bytes, int]] = []
    maker = ClockIdMaker(b"\x05", 0, lambda process, ceiling: kept.append((process, ceiling)))
    seen = [bytes(maker.next(spec.PUBLISH, 0))]
    assert time_of(seen[0]) == now
    for step in (0, 1, -(10**15), 10**6, 3 * RESERVE, -RESERVE):
        now += step
        seen += [bytes(maker.next(spec.PUBLISH, 0)) for _ in range(3)]
    times = [time_of(ident) for ident in seen]
    assert times == sorted(set(times))
    for ident in seen:
        assert id_end(ident, 0, len(ident)) == len(ident) == 12
        assert ident[:2] == b"\x31\x05"
    # Each is below what was kept before it was made, and that is not kept for each.
    assert kept[-1][1] > times[-1]
    assert len(kept) < 5
    # The next process goes on behind it, even when its clock is far behind.
    now = 0
    again = ClockIdMaker(b"\x05", kept[-1][1])
    assert time_of(bytes(again.next(spec.PUBLISH, 0))) > kept[-1][1]


def test_a_chosen_id_is_that_of_the_next_message_only() -> None:
    maker = ChosenIdMaker(b"\x05")
    first = bytes(maker.next(spec.PUBLISH, 0))
    assert bytes(maker.ident) == first
    chosen = b"\x34" + bytes(17)
    maker.chosen = chosen
    # Requests and a new connection between leave it, and the size of the next message's id is known.
    ping = bytes(maker.next(spec.PINGREQ, 0))
    assert ping[0] >> 4 == spec.PINGREQ
    assert maker.set_process(b"\x09", 0, 1) == 0
    assert (maker.ident, maker.next(spec.PUBLISH, 0)) == (chosen, chosen)
    after = bytes(maker.next(spec.PUBLISH, 0))
    assert after[:2] == b"\x31\x09"
    assert time_of(after) > time_of(ping) > time_of(first)
    assert bytes(maker.ident) == after


def test_a_process_number_is_kept_at_once() -> None:
    kept: list[bytes] = []
    maker = ClockIdMaker(b"", 0, lambda process, ceiling: kept.append(process))
    assert maker.set_process(b"\x07\x01\x00", 0, 3) == 0
    assert kept == [b"\x07\x01"]
    assert bytes(maker.next(spec.AUTH, 0))[:3] == b"\x02\x07\x01"
    assert len(maker.ident) == 13
    assert maker.set_process(bytes([1] * 8), 0, 8) == E_ARGUMENT


@given(
    st.lists(
        st.tuples(st.sampled_from("pfsr"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)),
        max_size=40,
    )
)
def test_the_table_is_the_cores(steps: list[tuple[str, int, int, int]]) -> None:
    one, other = IdTable(4), HostIdTable(4)
    for what, place, state, n in steps:
        ident = b"id" + bytes([n])
        if what == "p" and state and not one.state[place]:
            one.put(place, state, ident, 0, 3)
            other.put(place, state, ident, 0, 3)
        elif what == "s":
            one.state[place] = other.state[place] = state if one.state[place] else 0
        elif what == "r" and state and one.state[place]:
            one.rename(place, state, ident, 0, 3)
            other.rename(place, state, ident, 0, 3)
        assert bytes(other.state) == bytes(one.state)
        assert (other.free() < 0) == (one.free() < 0)
        assert other.free() < 0 or other.state[other.free()] == 0
        for k in range(4):
            assert other.number(k) == one.number(k)
        found, also = one.find(state, state, ident, 0, 3), other.find(state, state, ident, 0, 3)
        # One of several with the same id.
        if not state:
            continue
        assert (found < 0) <= (also < 0)
        if also >= 0:
            assert (other.state[also], bytes(other.ids[also * 18 : also * 18 + 3])) == (state, ident)
