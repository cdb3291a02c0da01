"""A deep-sleep sensor with a known address is awake for three round trips: TCP, CONNECT, PUBLISH."""

import pytest

from tools import round_trips


@pytest.mark.needs_micropython
@pytest.mark.needs_mosquitto
def test_three_round_trips() -> None:
    if reason := round_trips.missing():
        pytest.skip(reason)
    (run,) = round_trips.measure(rtt_ms=400)
    assert run.round_trips == 3
    # CONNECT, PUBLISH and DISCONNECT are a segment each.
    assert run.segments == 3
    assert run.awake_ms >= 3 * 400
