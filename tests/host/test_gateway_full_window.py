"""A broker that waits for acknowledgements is told apart from one that has nothing to send."""

import pytest

from headwater_host.gateway.full_window import FullWindow


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def cycle(
    full_window: FullWindow,
    clock: Clock,
    count: int = 20,
    seconds: float = 0.05,
    first: float = 0.02,
    last: float = 0.1,
) -> bool:
    """``count`` messages arrive between the parts ``first`` and ``last`` of the cycle, which then ends."""
    began = clock.now
    for number in range(count):
        part = first + (last - first) * number / max(1, count - 1)
        clock.now = began + part * seconds
        full_window.arrived()
    clock.now = began + seconds
    return full_window.acknowledged()


def test_three_cycles_of_waiting_are_a_plateau_and_are_told_once() -> None:
    clock = Clock()
    full_window = FullWindow(clock)
    assert [cycle(full_window, clock) for _ in range(6)] == [False, False, True, False, False, False]
    assert (full_window.cycles, full_window.messages) == (6, 20)
    assert full_window.seconds == pytest.approx(0.05)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"count": 9}, id="few messages"),
        pytest.param({"count": 0}, id="none"),
        pytest.param({"seconds": 0.005}, id="a fast disk"),
        pytest.param({"last": 0.9}, id="they come all the time"),
        pytest.param({"first": 0.3, "last": 0.4}, id="they come when they come"),
    ],
)
def test_other_cycles_are_none_and_begin_the_count_anew(other: dict[str, float]) -> None:
    clock = Clock()
    full_window = FullWindow(clock)
    for _ in range(10):
        assert not cycle(full_window, clock)
        assert not cycle(full_window, clock)
        assert not cycle(full_window, clock, **other)  # type: ignore[arg-type]
    assert full_window.cycles == 20


def test_an_interruption_begins_the_count_anew() -> None:
    clock = Clock()
    full_window = FullWindow(clock)
    for _ in range(10):
        assert not cycle(full_window, clock)
        assert not cycle(full_window, clock)
        full_window.reset()
