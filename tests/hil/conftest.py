"""Boards for the hardware tests: real ones (``--board /dev/ttyACM0,/dev/ttyACM1``), or a virtual one."""

from collections.abc import Iterator

import pytest

from tests.conftest import require
from tools.board import Board
from tools.deploy import deploy, package_files
from tools.virtual_board import VirtualBoard


def _ports(config: pytest.Config) -> list[str]:
    chosen = config.getoption("--board") or ""
    return [port.strip() for port in chosen.split(",") if port.strip()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "deployed_board" in metafunc.fixturenames:
        metafunc.parametrize(
            "deployed_board", _ports(metafunc.config) or ["virtual"], indirect=True, scope="session"
        )


@pytest.fixture(scope="session")
def deployed_board(request: pytest.FixtureRequest) -> Iterator[Board]:
    if request.param != "virtual":
        with Board(request.param) as board:
            board.soft_reset()
            deploy(board)
            yield board
        return
    require("micropython")
    # The factory is quicker than the serial line, which `test_board.py` tries. All portable tests want their place.
    made = VirtualBoard(flash="littlefs", flash_size=2 << 20, files=package_files("mpy"))
    with made as virtual, Board(virtual.port, virtual) as board:
        yield board


@pytest.fixture
def board(deployed_board: Board) -> Board:
    """A board that has headwater, its interpreter empty: ``exec``, ``run_file``, ``put``, ``reset``, ``power_cut``."""
    if deployed_board.virtual is not None and not deployed_board.virtual.running:
        deployed_board.power_on()
    deployed_board.soft_reset()
    return deployed_board


@pytest.fixture
def switchable_board(board: Board) -> Board:
    """A board whose power the test may cut."""
    if not board.switchable:
        pytest.skip(f"the supply of {board.port} cannot be switched from here (HEADWATER_BOARD_POWER)")
    return board
