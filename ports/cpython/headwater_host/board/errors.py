"""Errors of serial ports and boards, each with its remedy."""

import errno
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpremote.transport import TransportError, TransportExecError
from serial import Serial, SerialException, SerialTimeoutException

from headwater_host.exits import CONNECTION, FAILED, TIMED_OUT, CommandError


class BoardError(CommandError):
    """The board or its port cannot do what was requested. The text has the cause and the remedy."""


class DeviceError(Exception):
    """Code on the board raised an exception. The text is its traceback, `stdout` what it printed."""

    def __init__(self, traceback: str, stdout: str) -> None:
        """Store the traceback and the output."""
        super().__init__(traceback)
        self.stdout = stdout


class BoardResetError(BoardError):
    """The board started again while a program ran. `sign` is the line that shows it."""

    def __init__(self, sign: str) -> None:
        """Create the error from the line that the board printed."""
        super().__init__(
            f"the board reset itself while the program ran ({sign!r}); `headwater board logs` shows what it does now",
            CONNECTION,
        )


def unopened(port: str) -> BoardError | None:
    """Return why `port` cannot be opened, or None if it can be opened now."""
    try:
        Serial(port, exclusive=True, timeout=0).close()
    except (OSError, ValueError) as error:
        return _of_opening(port, error)
    return None


def _of_opening(port: str, error: Exception) -> BoardError:
    code = getattr(error, "errno", None)
    if code == errno.ENOENT:
        return BoardError(
            f"there is no port {port}; `headwater board list` lists the boards (a charging cable carries no data)",
            CONNECTION,
        )
    if code in (errno.EACCES, errno.EPERM):
        group = _group(port)
        return BoardError(
            f"no permission to open {port}; add yourself to its group and log in again: "
            f"sudo usermod -aG {group} $USER (or install a udev rule: docs/board-command.md#permission)",
            CONNECTION,
        )
    if code in (errno.EBUSY, errno.EAGAIN) or "exclusively lock" in str(error):
        holders = ", ".join(_holders(port)) or "another program"
        return BoardError(f"{port} is busy: {holders} uses it; close that program first", CONNECTION)
    return BoardError(f"cannot open {port}: {os.strerror(code) if code else error}", CONNECTION)


def _group(port: str) -> str:
    """Return the group that may open `port`: dialout on Debian, uucp on Arch."""
    try:
        group = Path(port).group()
    except (OSError, KeyError):
        return "dialout"
    return "dialout" if group == "root" else group


def _holders(port: str) -> Iterator[str]:
    """Yield the processes that have `port` open, as far as this user may see them."""
    device = Path(port).resolve()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and any(
                descriptor.resolve() == device for descriptor in (process / "fd").iterdir()
            ):
                yield f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # it has ended, or belongs to another user
            continue


def is_of_line(error: BaseException) -> bool:
    """Return whether an error shows that the board does not answer, so that further commands would fail too."""
    return isinstance(error, TransportError | SerialException) and not isinstance(error, TransportExecError)


def is_full(error: Exception) -> bool:
    """Return whether an error shows that the board's file system is full."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return re.search(r"ENOSPC|OSError: 28$", str(error).rstrip()) is not None


@contextmanager
def explained(port: str) -> Iterator[None]:
    """Turn errors of the line to a board into BoardError."""
    try:
        yield
    except (DeviceError, TransportExecError) as error:
        cause = str(error).rstrip()
        if is_full(error):
            raise full() from error
        if cause.endswith("OSError: 39"):  # ENOTEMPTY
            raise BoardError("the directory is not empty: remove its files first") from error
        raise BoardError(f"code on the board failed:\n{cause}") from error
    except SerialTimeoutException as error:
        raise BoardError(_unanswered(port), TIMED_OUT) from error
    except SerialException as error:
        raise _vanished(port) from error
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENODEV, errno.ENXIO, errno.EBADF):
            raise _vanished(port) from error
        if is_full(error):
            raise full() from error
        raise
    except (TransportError, struct.error) as error:
        if not Path(port).exists():
            raise _vanished(port) from error
        raise BoardError(_unanswered(port), TIMED_OUT) from error


def _vanished(port: str) -> BoardError:
    return BoardError(
        f"{port} vanished: the cable was pulled, or the board reset itself (a watchdog of its program does that); "
        "repeat the command",
        CONNECTION,
    )


def _unanswered(port: str) -> str:
    return (
        f"the board at {port} does not answer ctrl-C with MicroPython's prompt: press its reset button and repeat the "
        "command; if it still does not answer, it has no MicroPython, or its program disables ctrl-C"
    )


def full(wanted: int = 0, free: int = 0) -> BoardError:
    """Return the error for a file system without room for `wanted` bytes."""
    needs = f" (needs {wanted:,} bytes, {free:,} are free)" if wanted else ""
    return BoardError(
        f"the board's file system is full{needs}: remove files (`headwater board files ls`, `files rm`) or install "
        "fewer components",
        FAILED,
    )
