"""Cut a board's power at flash operations of an update.

    python -m tests.hil.update_cuts --every             # each operation once
    python -m tests.hil.update_cuts --random 1000       # one to three cuts in an update, at random

Each update begins with a copy of the same flash. The board has to start after each cut, in the old version or the new
one, and the update has to be completed in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from headwater_host.board.update import UpdateError, send
from headwater_host.client.mqtt import Client
from tests.hil import updates
from tools.broker import Mosquitto, free_port
from tools.virtual_board import VirtualBoard

SEED = 12
#: Where an update is cut: while it is received; in the first start of the new version, until it is confirmed; in the
#: start after the last one of a version that hangs, which leads back to the old one.
RECEIVE, TRIAL, BACK = PHASES = ("receive", "trial", "back")
# The highest operation at which random cuts are tried, a little above the number that there are.
_MOST = {RECEIVE: 64, TRIAL: 8, BACK: 4}
_WAIT_S = 60.0
_SILENCE_S = 0.2
_HANGS = b"print('it hangs')\nwhile True: pass\n"


def board_of(port: int) -> VirtualBoard:
    """Return a board that waits where it would restart, and rolls a version back after three power cuts."""
    return updates.board(port, hold=True, offline_starts=3)


class Bench:
    """A board that waits where it would restart, and its flash as each phase begins."""

    def __init__(self, board: VirtualBoard, port: int) -> None:
        """Prepare the flash of the phases. The board is on, in version 0."""
        self._board = board
        self._port = port
        self._flash = board.root / "flash.img"
        self._images = {
            phase: updates.image(
                updates.version("1", **({"app.py": _HANGS} if phase == BACK else {})), "1", 1
            )
            for phase in PHASES
        }
        board.wait_for("version 0 is online", _WAIT_S)
        self._keep(RECEIVE)
        for phase in (TRIAL, BACK):
            self._restore(RECEIVE)
            mark = board.mark
            board.power_on()
            asyncio.run(self._receive(phase, mark))
            self._keep(phase)
        for _ in range(3):
            mark = board.mark
            board.power_on()
            board.wait_for("it hangs", _WAIT_S, after=mark)
            self._keep(BACK)

    async def _receive(self, phase: str, mark: int) -> None:
        sending = asyncio.ensure_future(self._send(phase))
        await asyncio.to_thread(self._board.wait_for, "restart due", _WAIT_S, after=mark)
        sending.cancel()

    def _keep(self, phase: str) -> None:
        self._board.power_cut()
        shutil.copyfile(self._flash, self._flash.with_name(phase))

    def _restore(self, phase: str) -> None:
        shutil.copyfile(self._flash.with_name(phase), self._flash)

    async def _send(self, phase: str) -> str:
        """Send the phase's image as the command does: why it failed, or an empty text."""
        async with Client("127.0.0.1", self._port, reconnect=True) as client:
            try:
                await send(client, updates.TOPIC, self._images[phase], timeout=_WAIT_S, silence=_SILENCE_S)
            except UpdateError as error:
                return str(error)
        return ""

    def update(self, phase: str, cuts: Sequence[int], *, half_open: bool = False) -> int:
        """Update from the begin of ``phase``, with a cut in each of the first lives: how many of them took place."""
        self._restore(phase)
        return asyncio.run(asyncio.wait_for(self._update(phase, cuts, half_open), 4 * _WAIT_S))

    async def _update(self, phase: str, cuts: Sequence[int], half_open: bool) -> int:
        board = self._board
        begin = board.mark
        sending = asyncio.ensure_future(self._send(phase))
        done = 0
        for cut in itertools.chain(cuts, itertools.repeat(0)):
            mark = board.mark
            await asyncio.to_thread(
                board.power_on, cut_at_flash_operation=cut, half_open=half_open and cut > 0
            )
            await self._until(partial(self._life_is_over, sending, mark))
            if not board.running:
                done += 1
                continue
            finished = sending.done()
            board.power_cut()
            if finished:
                break
        log = board.log_path.read_bytes()[begin:].decode(errors="replace")
        assert "Traceback" not in log, log
        why = sending.result()
        assert "did not become healthy" in why and "runs 0 again" in why if phase == BACK else not why, why
        return done

    def _life_is_over(self, sending: asyncio.Future[str], mark: int) -> bool:
        return not self._board.running or sending.done() or "restart due" in self._board.log[mark:]

    async def _until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not true():
            assert time.monotonic() < deadline, self._board.log[-2000:]
            await asyncio.sleep(0.003)

    def operations(self, phase: str) -> int:
        """Cut each operation of a phase once; return their number."""
        for cut in itertools.count(1):
            if not self.update(phase, [cut]):
                return cut - 1
        raise AssertionError

    def random(self, updates: int, seed: int, *, half_open: bool = False) -> Counter[int]:
        """Cut updates at random; return how many had how many cuts."""
        chance = random.Random(seed)
        cuts: Counter[int] = Counter()
        for _ in range(updates):
            phase = chance.choice(PHASES)
            # Three cuts on trial would use up the offline starts of the new version, which is rolled back then.
            lives = chance.randint(1, 2 if phase == TRIAL else 3)
            most = _MOST[phase]
            cuts[
                self.update(phase, [chance.randint(1, most) for _ in range(lives)], half_open=half_open)
            ] += 1
        return cuts


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hil.update_cuts", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--every", action="store_true", help="cut at each operation")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="number of updates with random cuts"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the random cuts; default: %(default)s")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as work,
        Mosquitto(Path(work), free_port()) as broker,
        board_of(broker.port) as board,
    ):
        bench = Bench(board, broker.port)
        began = time.monotonic()
        if args.every:
            for phase in PHASES:
                print(f"{phase}: {bench.operations(phase)} operations, each cut once", flush=True)
        if args.random:
            total = sum(bench.random(args.random, args.seed).elements())
            print(f"{args.random} updates with {total} cuts (seed {args.seed})")
        print(f"no board failed to start; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
