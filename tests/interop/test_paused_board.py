"""A client on MicroPython that does not read for a while, against mosquitto."""

from collections.abc import Callable

import pytest

from tests.interop.test_keeper_board import WAIT_S, board
from tools.broker import Mosquitto

Start = Callable[..., Mosquitto]

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def test_waiting_with_unread_bytes_does_not_spin(mosquitto: Start) -> None:
    broker = mosquitto()
    with board("paused", broker.port) as b:
        at = b.wait_for("turns True []", WAIT_S)
        at = b.wait_for(f"flushed {[b'%d' % n for n in range(5)]}", WAIT_S, after=at)
        b.wait_for("handled True", WAIT_S, after=at)
