"""Start the current version of a program; roll an update back that does not become healthy.

    # main.py, and all of it
    from headwater_board import loader

    loader.run("app")

``run`` imports the module ``app`` from the current slot: ``/a`` or ``/b``, which ``headwater_board.ota`` fills in turn,
or, before the first update, from the places where it was installed (``/``, ``/lib``). The loader itself is never
updated over the air: it stays the one that main.py has imported, and ``/headwater.slot`` keeps its format.

A new version is on trial: it has some starts to call ``confirm``, which ``headwater_board.ota`` does once the program
is connected. An exception, a hang (the watchdog resets the board) and ten minutes in which the program does not poll
use up one start each. A power cut, and a program that polls but finds no broker, use up one of many offline starts
instead. Then the loader returns to the previous version. ``docs/updates.md`` has the file and all guarantees.
"""

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    State = dict[str, Any]

#: Incremented when receivers need another loader; before there was this number, 1.
VERSION = 2
#: The file with the current slot.
STATE = "/headwater.slot"
_NEXT = STATE + ".new"
_WHY_BYTES = 120
_OFFLINE_STARTS = 144
# How the last start of a version on trial went, key ``start`` of the file; 0 or none: it is counted already.
# The program was started.
_STARTED = 1
# The board was reset into the other firmware.
_BOOTED = 2
# The program polls, and only the connection is missing.
_OFFLINE = 3

#: True if ``run`` has started the program, so that an update can be installed.
started = False
#: True if the version that runs is on trial.
on_trial = False
#: The watchdog that ``run`` has started.
watchdog: "Any" = None
# Ends a start on trial.
_timer: "Any" = None
# What the file says of this start.
_start = _STARTED


def read() -> "State":
    """Return what the file says; without one, that the installed version runs and that there was no update."""
    # The successor, because on FAT a power cut can leave it alone.
    for name in (STATE, _NEXT):
        try:
            with open(name) as file:
                return json.load(file)  # type: ignore[no-any-return]
        except (OSError, ValueError):
            pass
    return {"slot": "", "version": "0", "id": "", "serial": 0}


def _write(state: "State") -> None:
    """Replace the file: a power cut leaves the old content or the new."""
    with open(_NEXT, "w") as file:
        json.dump(state, file)
    try:
        os.rename(_NEXT, STATE)
    except OSError:
        # FAT does not rename to a name that exists.
        os.remove(STATE)
        os.rename(_NEXT, STATE)


def switch(
    slot: str,
    version: str,
    update_id: str,
    serial: int,
    starts: int = 3,
    firmware: str = "",
    offline: int = _OFFLINE_STARTS,
) -> None:
    """Make ``slot`` the current one from the next start on, for ``starts`` starts or until ``confirm``.

    ``firmware`` is the label of the ESP32 partition that has to run then. ``offline`` is the number of starts that may
    end without a connection or by a power cut.
    """
    now = read()
    back = {"slot": now["slot"], "version": now["version"], "id": now["id"]}
    state = {
        "slot": slot,
        "version": version,
        "id": update_id,
        "serial": serial,
        "left": starts,
        "offline": offline,
        "back": back,
    }
    if firmware:
        state["firmware"] = firmware
    _write(state)


def confirm() -> str:
    """Keep the version that is on trial; of any other version, do nothing.

    Return an empty text, or why the flash could not be written: then the version stays on trial, without a time limit
    in this start. Call it again later.
    """
    global on_trial
    if not on_trial:
        # The file may have a version that waits for its first start.
        return ""
    if _timer is not None:
        _timer.deinit()
    state = read()
    if "left" in state:
        _keep_firmware(state)
        for key in ("left", "offline", "start", "back", "why", "firmware"):
            state.pop(key, None)
        try:
            _write(state)
        except OSError as error:
            return "%s: %s" % (type(error).__name__, error)
    on_trial = False
    return ""


def mark_offline(offline: bool = True) -> None:
    """Record that the program of a version on trial works, but has no connection, or that this is over.

    A start that ends offline uses up one of the offline starts. Writes to flash only when that changes.
    """
    global _start
    start = _OFFLINE if offline else _STARTED
    if not on_trial or start == _start:
        return
    state = read()
    if "left" in state:
        state["start"] = start
        try:
            _write(state)
        except OSError:
            # The start counts as failed, unless a later call succeeds.
            return
        if offline:
            # From here on this loader returns to the previous firmware, if it must.
            _keep_firmware(state)
    _start = start


def _keep_firmware(state: "State") -> None:
    if "firmware" in state:
        from headwater_board.ota_firmware import keep

        keep()


def _has_other_firmware(state: "State") -> bool:
    """Return whether the version needs another firmware than the one that runs."""
    if "firmware" not in state:
        return False
    from headwater_board.ota_firmware import running

    return bool(running() != state["firmware"])


def _boot_other() -> "OSError | None":
    """Reset the board into the other firmware. Return the error if that has no valid image."""
    from headwater_board.ota_firmware import boot_other

    return boot_other()


def _count(state: "State", other: bool) -> None:
    """Count the last start of the version on trial, by how it went and why it ended."""
    import machine

    start = state.get("start", 0)
    if not start or (start == _BOOTED and not other):
        # The version has not been started yet, or its firmware has now been.
        return
    if start == _BOOTED:
        state["why"] = "the new firmware did not start"
    cause = machine.reset_cause()
    planned = cause == machine.PWRON_RESET or cause == getattr(machine, "DEEPSLEEP_RESET", -1)
    # RP2 has the same cause for a reset by the program and by the watchdog, and no HARD_RESET.
    hung = hasattr(machine, "HARD_RESET") and cause == machine.WDT_RESET
    key = "offline" if planned or (start == _OFFLINE and not hung) else "left"
    state[key] = state.get(key, _OFFLINE_STARTS) - 1


def _begin() -> "State":
    """Return the version to start, whose start the file then has, or the previous version."""
    global _start
    state = read()
    if "left" not in state:
        return state
    other = _has_other_firmware(state)
    _count(state, other)
    why = ""
    if state["left"] <= 0:
        why = state.get("why") or "it hung, ended or was reset before it was connected"
    elif state.get("offline", 1) <= 0:
        why = "it was not connected in any of its starts"
    else:
        state["start"] = _BOOTED if other else _STARTED
        state.pop("why", None)
        try:
            _write(state)
        except OSError as error:
            # A version that hangs would be started for ever.
            why = "its starts cannot be counted: %s" % error
        else:
            if not other:
                _start = _STARTED
                return state
            why = "its firmware cannot be started: %s" % _boot_other()
    if "firmware" in state and not other:
        # The next start gets here in the previous firmware.
        state["left"] = state["start"] = 0
        state["why"] = why
        try:
            _write(state)
        except OSError:
            pass
        _boot_other()
    print("version %s is rolled back: %s" % (state["version"], why))
    back: State = state["back"]
    back["serial"] = state["serial"]
    back["failed"] = {"id": state["id"], "version": state["version"], "why": why}
    try:
        _write(back)
    except OSError:
        # The next start tries again.
        pass
    return back


def retry(update_id: str) -> None:
    """Forget that the image ``update_id`` was rolled back, so that it may be installed again. Raises OSError."""
    state = read()
    if state.get("failed", {}).get("id") == update_id:
        del state["failed"]
        # Of the images that this board has accepted, only the last one has this serial number.
        state["serial"] -= 1
        _write(state)


def _fail(why: str, crashed: bool = True) -> None:
    """End a start on trial. One that has not ``crashed`` counts as offline if it was."""
    from machine import reset

    if not on_trial:
        # Confirmed since the timer was due.
        return
    if crashed or _start == _STARTED:
        state = read()
        state["start"] = _STARTED
        state["why"] = why[:_WHY_BYTES]
        try:
            _write(state)
        except OSError:
            pass
    reset()


def run(app: str = "app", watchdog_ms: int = 8000, trial_s: int = 600) -> None:
    """Import ``app`` in its current version.

    The program must feed the watchdog, which runs from here on (``machine.WDT``; 0: none, then a version that hangs
    is not rolled back). RP2 allows at most 8388 ms. A version on trial has ``trial_s`` seconds in each start to become
    connect (0: any time). Its exceptions reset the board; those of another version are raised.
    """
    import machine

    global started, on_trial, watchdog, _timer
    started = True
    state = _begin()
    on_trial = "left" in state
    if state["slot"]:
        place = "/" + state["slot"]
        sys.path.insert(0, place + "/lib")
        sys.path.insert(0, place)
        # The slot may have this package as well. This module stays.
        sys.modules.pop("headwater_board", None)
    if watchdog_ms:
        watchdog = machine.WDT(timeout=watchdog_ms)
    if trial_s and on_trial:
        try:
            _timer = machine.Timer(-1)
        except ValueError:
            # ESP32 before MicroPython 1.27 has no virtual timers.
            _timer = machine.Timer(1)
        why = "not connected within %d s" % trial_s
        _timer.init(
            mode=machine.Timer.ONE_SHOT, period=trial_s * 1000, callback=lambda timer: _fail(why, False)
        )
    try:
        __import__(app)
    except Exception as error:
        if not on_trial:
            raise
        sys.print_exception(error)
        _fail("%s: %s" % (type(error).__name__, error))
