"""Starts of a board whose power goes at every flash operation of ``headwater_board.boots``; then a thousand at random.

No boot number is used twice, each is larger than the ones before, and the board starts each time.
"""

import sys

from pipe import Random
from ram_flash import MOUNT, RamDisk, RamFlash, mount

RANDOM = 1000


class Machine:
    """The names of ``machine`` on an RP2, which the unix build lacks."""

    PWRON_RESET = 1
    WDT_RESET = 3

    def __init__(self):
        self.cause = self.PWRON_RESET

    def reset_cause(self):
        return self.cause


machine = sys.modules["machine"] = Machine()

from headwater_board.boots import Boots  # noqa: E402 - it is for this machine


class Board:
    def __init__(self, flash):
        self.flash = flash
        self.kept = None
        self.used = []

    def live(self, cut=-1):
        """One start: count it, note an error and why it restarts. How many flash operations that took."""
        flash = self.flash(self.kept)
        mount(flash)
        flash.cut_after = cut
        boots = Boots(MOUNT + "/boot")
        if boots.error is None:
            assert boots.boot > (self.used[-1] if self.used else 0), (boots.boot, self.used[-3:])
            self.used.append(boots.boot)
            assert boots.last_error == "" or "ValueError: %d" % boots.error_boot in boots.last_error
            try:
                raise ValueError(boots.boot)
            except ValueError as error:
                boots.failed(error)
            boots.note("deep sleep")
        else:
            assert flash.dead, boots.error
            assert boots.boot >> 31 == 1
        self.kept = flash.kept
        machine.cause = Machine.PWRON_RESET if flash.dead else Machine.WDT_RESET
        return -1 - flash.cut_after if cut < 0 else 0

    def fail(self, cut):
        """A start that cannot be counted; then the flash works again, and the power goes."""
        flash = self.flash(self.kept)
        mount(flash)
        flash.failing = True
        boots = Boots(MOUNT + "/boot")
        assert boots.error is not None
        assert boots.boot >> 31 == 1
        flash.failing = False
        flash.cut_after = cut
        boots.note("failed")
        self.kept = flash.kept

    def check(self, starts, cuts):
        """The next start without a cut knows the causes of all."""
        self.live()
        machine.cause = Machine.WDT_RESET
        flash = self.flash(self.kept)
        mount(flash)
        boots = Boots(MOUNT + "/boot")
        assert boots.cause == "deep sleep", boots.cause
        assert boots.boot == self.used[-1] + 1
        assert boots.error_boot == self.used[-1], boots.last_error
        # On FAT each cut may tear a file, which skips a number.
        assert boots.boot <= starts + 2 + (cuts if self.flash is RamDisk else 0), (boots.boot, starts)


for flash in (RamFlash, RamDisk):
    board = Board(flash)
    board.live()
    operations = board.live()
    assert operations >= 3, operations
    # Also the first start of all, and one whose directory is compacted.
    for before in (0, 1, 2, 30):
        for cut in range(operations + 6):
            board = Board(flash)
            for _ in range(before):
                board.live()
            board.live(cut)
            board.check(before + 1, 1)
            board.fail(cut)
            board.check(before + 4, 2)
    print(flash.__name__, "every operation:", operations, "of a start")
    random = Random(7)
    board = Board(flash)
    for _ in range(RANDOM):
        board.live(random.below(operations + 1))
    board.check(RANDOM, RANDOM)
    print(flash.__name__, "random:", RANDOM, "starts,", len(board.used), "numbers used")
    assert len(set(board.used)) == len(board.used)
print("done")
