"""A board with a journal on littlefs loses its power half way through a program or erase (``tests.hil.store_cuts``)."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import require
from tests.hil.store_cuts import board_for_cuts, run_lives
from tools.board import Board
from tools.broker import Mosquitto
from tools.virtual_board import VirtualBoard

#: The program or erase at which the power goes, life by life: every one of the first ones, then samples.
CUTS = [*range(1, 34), *range(36, 150, 7)]
#: Messages to the board before each life; they may all be under way at once.
DOWN = 3


@pytest.fixture
def virtual() -> Iterator[VirtualBoard]:
    """A board of its own, whose power is off."""
    require("micropython")
    with board_for_cuts() as board:
        board.power_cut()
        yield board


@pytest.mark.needs_mosquitto
@pytest.mark.timeout(300)
def test_power_cuts_at_flash_operations(virtual: VirtualBoard, mosquitto: Callable[..., Mosquitto]) -> None:
    broker = mosquitto(settings={"max_queued_messages": 0})
    print(run_lives(virtual, broker, CUTS, [DOWN] * len(CUTS)))


BORN = """
from headwater.mqtt.session import ClientSession
from headwater_board.flash import flash_outbox
outbox = flash_outbox("/born.hwj", 700, 8)
session = ClientSession(b"born", outbox=outbox)
print("handed in", session.publish(b"t", b"x", 2) > 0, outbox.unreadable)
"""


@pytest.mark.parametrize("operation", [1, 2, 3, 4])
def test_a_power_cut_while_the_journal_is_made(virtual: VirtualBoard, operation: int) -> None:
    """Of the first journal there may be a name, and nothing behind it: it begins anew, and nothing is amiss."""
    virtual.put({"main.py": BORN})
    virtual.power_on(cut_at_flash_operation=operation)
    virtual.wait_off()
    mark = virtual.mark
    virtual.power_on()
    virtual.wait_for(">>> ", after=mark)
    assert "handed in True False\n" in virtual.log[mark:]


FULL = """
import os
from headwater.errors import E_STORE
from headwater.mqtt.session import ClientSession
from headwater_board.flash import flash_outbox
outbox = flash_outbox("/full.hwj", 4000, 16)
session = ClientSession(b"full", outbox=outbox)
first = session.publish(b"t", bytes(300), 2)
junk = open("/junk.bin", "wb")
for size in (4096, 512, 64):
    try:
        while True:
            junk.write(bytes(size))
            junk.flush()
    except OSError as error:
        print(error.errno)
try:
    junk.close()
except OSError:
    pass
statuses = []
while not statuses or statuses[-1] > 0:
    statuses.append(session.publish(b"t", bytes(300), 2))
print(first, statuses[-1] == E_STORE, outbox.error.errno, outbox.count == len(statuses))
again = flash_outbox("/full.hwj", 4000, 16)
print(again.count == outbox.count, again.torn, again.damaged)
again.close()
os.remove("/junk.bin")
print(session.publish(b"t", bytes(300), 2) == outbox.count)
outbox.close()
again = flash_outbox("/full.hwj", 4000, 16)
print(again.count == outbox.count, again.torn, again.damaged)
os.remove("/full.hwj")
"""


@pytest.mark.timeout(120)
def test_a_file_system_that_is_full(board: Board) -> None:
    if board.virtual is None:
        pytest.skip("fills the flash: not on a real board")
    lines = board.exec(FULL, timeout=100).splitlines()
    assert lines == ["28"] * 3 + ["1 True 28 True", "True 0 0", "True", "True 0 0"]
