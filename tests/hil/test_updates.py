"""Updates over the air: a board, a broker and the command's sender."""

import asyncio
from collections.abc import Callable

import pytest

from tests.hil import updates
from tools.broker import Mosquitto

pytestmark = [pytest.mark.needs_micropython, pytest.mark.needs_mosquitto]


def test_an_update_and_the_next(mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto()
    with updates.board(broker.port) as board:
        board.wait_for("version 0 is online")
        for number in ("1", "2.0.1", "2.1"):
            mark = board.mark
            asyncio.run(
                updates.install(
                    broker.port, updates.image(updates.version(number), number, int(float(number[:3]) * 10))
                )
            )
            board.wait_for(f"version {number} is online", after=mark)
