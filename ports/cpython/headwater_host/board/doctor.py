"""Check a board step by step, from its serial port to an acknowledged message, and say which step fails."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from headwater_host.board import information, install
from headwater_host.board.doctor_steps import STEPS
from headwater_host.board.errors import BoardError, DeviceError
from headwater_host.board.repl import Board

OK, SKIPPED, FAILED = "ok", "-", "FAIL"


class Finding(NamedTuple):
    """The result of a step: OK, SKIPPED or FAILED, what was found, and what to do."""

    step: str
    result: str
    text: str
    remedy: str = ""


def examine(board: Board) -> Iterator[Finding]:
    """Check a board, and yield a finding for each step up to the first that fails."""
    for step, check in (("serial port", _port), ("firmware", _firmware), ("library", _library)):
        try:
            yield Finding(step, OK, check(board))
        except BoardError as error:
            text, _, remedy = str(error).partition("; ")
            yield Finding(step, FAILED, text, remedy)
            return
    for one in STEPS:
        try:
            said = board.exec(one.code, one.seconds).strip()
        except DeviceError as error:
            cause = _cause(str(error))
            remedy = next(remedy for pattern, remedy in one.remedies.items() if re.search(pattern, cause))
            yield Finding(one.name, FAILED, cause, remedy)
            return
        skipped = said.startswith("-")
        yield Finding(one.name, SKIPPED if skipped else OK, said.lstrip("- "))


def _port(board: Board) -> str:
    board.exec("")
    return f"{board.port}: MicroPython's prompt answers"


def _firmware(board: Board) -> str:
    found = information.facts(board)
    information.check_firmware(found)
    return information.firmware(found)


def _library(board: Board) -> str:
    record = install.read_record(board)
    if not record.complete:
        raise BoardError("the installation was interrupted; repeat `headwater board install`")
    found = information.facts(board)
    if not record.files and found["library"]:
        return "{} from {}".format(*found["library"])
    if not record.files:
        raise BoardError("headwater is not installed; `headwater board install` installs it")
    information.check_place(found)
    present = {name: found for name, (found, _) in install.hashes(board, list(record.files)).items()}
    if changed := [name for name in record.files if present.get(name) != record.files[name]]:
        raise BoardError(
            f"files changed since the installation: {', '.join(changed)}; repeat `headwater board install`"
        )
    return f"{record.version}: {', '.join(record.components)}"


def _cause(traceback: str) -> str:
    """Return the exception of a traceback without the class `Failed`; of a SettingsError all its lines."""
    lines = [line for line in traceback.strip().splitlines() if not line.startswith((" ", "Traceback"))]
    return "; ".join(lines).removeprefix("Failed: ").removeprefix("SettingsError: ")
