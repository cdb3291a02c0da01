"""Start the current version of a program; roll an update back that does not become healthy.

    # main.py, and all of it
    from headwater_board import loader

    loader.run("app")

``run`` imports the module ``app`` from the current slot: ``/a`` or ``/b``, which ``headwater_board.ota`` fills in turn,
or, before the first update, from the places where it was installed (``/``, ``/lib``). The loader itself is never
updated: it stays the one that main.py has imported, and ``/headwater.slot`` keeps its format.

A new version is on trial: it has some starts to call ``confirm``, which ``headwater_board.ota`` does once the program
is connected. An exception, a hang (the watchdog resets the board), ten minutes without ``confirm`` and a power cut use
up one start each. Then the loader returns to the previous version. ``docs/updates.md`` has the file and all guarantees.
"""

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    State = dict[str, Any]

#: The file with the current slot.
STATE = "/headwater.slot"
_NEXT = STATE + ".new"
_WHY_BYTES = 120

#: True if ``run`` has started the program, so that an update can be installed.
started = False
#: True if the version that runs is on trial.
on_trial = False
#: The watchdog that ``run`` has started.
watchdog: "Any" = None
# Ends a start on trial.
_timer: "Any" = None


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


def switch(slot: str, version: str, update_id: str, serial: int, starts: int = 3, firmware: str = "") -> None:
    """Make ``slot`` the current one from the next start on, for ``starts`` starts or until ``confirm``.

    ``firmware`` is the label of the ESP32 partition that has to run then.
    """
    now = read()
    back = {"slot": now["slot"], "version": now["version"], "id": now["id"]}
    state = {
        "slot": slot,
        "version": version,
        "id": update_id,
        "serial": serial,
        "left": starts,
        "back": back,
    }
    if firmware:
        state["firmware"] = firmware
    _write(state)


def confirm() -> None:
    """Keep the version that is on trial; of any other version, do nothing."""
    global on_trial
    if not on_trial:
        # The file may have a version that waits for its first start.
        return
    on_trial = False
    state = read()
    if "left" in state:
        if _timer is not None:
            _timer.deinit()
        if "firmware" in state:
            from headwater_board.ota_firmware import keep

            keep()
        for key in ("left", "back", "why", "firmware"):
            state.pop(key, None)
        _write(state)


def _fails(state: "State") -> str:
    """Return why the version on trial is not started again; empty if it is."""
    if "firmware" in state:
        from headwater_board.ota_firmware import boot_other, running

        if running() == state["firmware"]:
            if not state["left"]:
                # Resets the board. The next start gets here in the previous firmware.
                boot_other()
        elif state["left"]:
            # The first start after the switch, or the boot loader has returned to the previous firmware.
            state["left"] -= 1
            try:
                _write(state)
                boot_other()
            except OSError as error:
                return "its firmware cannot be started: %s" % error
        else:
            return state.get("why") or "the new firmware did not start"
    if state["left"]:
        return ""
    return state.get("why") or "it hung, ended or was reset before it was connected"


def _begin() -> "State":
    """Return the version to start, which the file then has with one start less, or the previous version."""
    state = read()
    if "left" not in state:
        return state
    why = _fails(state)
    if not why:
        state["left"] -= 1
        try:
            _write(state)
            return state
        except OSError as error:
            # A version that hangs would be started for ever.
            why = "its starts cannot be counted: %s" % error
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


def _fail(why: str) -> None:
    """End a start on trial."""
    from machine import reset

    if not on_trial:
        # Confirmed since the timer was due.
        return
    state = read()
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
    healthy (0: any time). Its exceptions reset the board; those of another version are raised.
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
        _timer.init(mode=machine.Timer.ONE_SHOT, period=trial_s * 1000, callback=lambda timer: _fail(why))
    try:
        __import__(app)
    except Exception as error:
        if not on_trial:
            raise
        sys.print_exception(error)
        _fail("%s: %s" % (type(error).__name__, error))
