# heap: 2M
"""The serial link on a line that does everything wrong at once, with resets at every step; see ``line.py``.

What a stream delivers is a beginning of what was sent in it, byte for byte; and when the faults stop, everything comes.
"""

import sys

from line import Bench

#: All on CPython; on MicroPython, and on a board, a part of it: what differs there is not the link's logic.
_STRIDE = 1 if sys.implementation.name == "cpython" else 6
_SEEDS = 3 if _STRIDE == 1 else 1
_KINDS = (
    {"lose": 150},
    {"flip": 150},
    {"drop": 150},
    {"twice": 300},
    {"noise": 300},
    {"lose": 60, "flip": 60, "drop": 60, "twice": 60, "noise": 60},
)


def _settle(bench: Bench, limit_ms: int = 60000) -> None:
    """The faults stop: the programs reopen what is over, until one stream has carried everything."""
    bench.ab.heal()
    bench.ba.heal()
    begin = bench.now
    while not bench.delivered():
        bench.reopen()
        bench.turn()
        assert bench.now - begin < limit_ms, bench.report()
    # What has come is all there is.
    bench.run(200)
    assert bench.delivered(), bench.report()


def test_each_fault_and_all_together() -> None:
    for kind in _KINDS:
        for seed in range(_SEEDS):
            bench = Bench(seed, size=2500, faults=kind)
            bench.until(bench.delivered, 120000)
            assert bench.ab.faults > 0
            assert bench.a.channel.streams == bench.b.channel.streams == 1, bench.report()


def test_a_line_that_loses_every_other_frame() -> None:
    for seed in range(_SEEDS):
        bench = Bench(seed, size=1500, faults={"lose": 250, "flip": 250})
        while not bench.delivered():
            # So bad a line may seem dead for a while.
            bench.reopen()
            bench.turn()
            assert bench.now < 300000, bench.report()


def test_pieces_of_any_size() -> None:
    for seed in range(_SEEDS):
        bench = Bench(seed, size=2500, faults=_KINDS[-1])
        bench.ragged = True
        bench.until(bench.delivered, 180000)


def test_byte_by_byte() -> None:
    bench = Bench(5, size=400, rate=1, step_ms=1, faults=_KINDS[-1])
    bench.until(bench.delivered, 60000)


def test_small_windows_and_payloads() -> None:
    for window, payload in ((1, 240), (2, 7), (3, 33), (8, 34), (5, 1)):
        bench = Bench(window, size=300, window=window, payload=payload, faults=_KINDS[-1])
        bench.until(bench.delivered, 240000)


def test_the_line_is_cut_now_and_then() -> None:
    for seed in range(_SEEDS):
        bench = Bench(seed, size=3000, faults={"flip": 30})
        for _ in range(6):
            bench.run(100 + bench.rng.below(400))
            which = bench.rng.below(3)
            bench.ab.cut = which != 0
            bench.ba.cut = which != 1
            bench.run(bench.rng.below(12000))
            bench.ab.cut = bench.ba.cut = False
            bench.reopen()
        _settle(bench)


def _reset_at(turn: int, which: int, faults: "dict[str, int] | None") -> None:
    bench = Bench(3, size=250, rate=3, step_ms=1, faults=faults)
    for _ in range(turn):
        bench.turn()
    first, second = (bench.a, bench.b) if which == 0 else (bench.b, bench.a)
    old = first.channel.session
    first.start(5000)
    if which == 2:
        second.start(6000)
    _settle(bench)
    if which == 2:
        assert not first.ended
        assert not second.ended
    else:
        # The end that lived on saw the stream end once, if there was one.
        assert not first.ended
        assert len(second.ended) <= 1, bench.report()
        for peer, _, _ in second.ended:
            assert peer == old


def test_a_reset_of_either_end_at_every_step() -> None:
    """From the first HELLO on until everything has come, at every 3 bytes of it."""
    bench = Bench(3, size=250, rate=3, step_ms=1)
    bench.until(bench.delivered)
    assert 80 < bench.turns < 300
    for turn in range(0, bench.turns + 15, _STRIDE):
        for which in (0, 1, 2):
            _reset_at(turn + which, which, None)


def test_a_reset_at_every_step_of_a_bad_line() -> None:
    for turn in range(0, 240, 3 * _STRIDE):
        _reset_at(turn, turn % 2, {"lose": 80, "flip": 80, "noise": 80})


def test_a_close_and_a_new_stream_at_every_step() -> None:
    bench = Bench(3, size=250, rate=3, step_ms=1)
    bench.until(bench.delivered)
    for turn in range(0, bench.turns + 15, 2 * _STRIDE - 1):
        bench = Bench(3, size=250, rate=3, step_ms=1)
        for _ in range(turn):
            bench.turn()
        end = (bench.a, bench.b)[turn % 2]
        end.channel.close()
        end.open()
        _settle(bench)
        assert len(bench.a.ended) + len(bench.b.ended) <= 2


def test_many_lives() -> None:
    """Both ends are reset again and again on a bad line; no byte of one life comes out in another."""
    for seed in range(_SEEDS):
        bench = Bench(seed, size=1200, faults=_KINDS[-1])
        for life in range(12):
            bench.run(bench.rng.below(1500))
            bench.reopen()
            (bench.a, bench.b)[bench.rng.below(2)].start(10000 + 100 * seed + life)
        _settle(bench)
