"""Exit codes of headwater."""

from headwater.errors import E_LIMIT
from headwater_host.errors import (
    ArgumentError,
    ClientError,
    ConnectRefusedError,
    NotConnectedError,
    ProtocolError,
    TimedOutError,
)

OK = 0
#: Failure: the server refused, a packet is malformed, a log is damaged.
FAILED = 1
#: The command line, a configuration or an input value is wrong.
USAGE = 2
#: No connection, or it was lost.
CONNECTION = 3
#: Timeout.
TIMED_OUT = 4
#: 128 + n: ended by signal n.
SIGNALLED = 128


class CommandError(Exception):
    """Ends a command with a message and an exit code, without a traceback."""

    def __init__(self, text: str, code: int = FAILED):
        super().__init__(text)
        self.code = code


# The first matching class counts.
_CODES: tuple[tuple[type[ClientError], int], ...] = (
    (ArgumentError, USAGE),
    (TimedOutError, TIMED_OUT),
    (ConnectRefusedError, FAILED),
    (ProtocolError, FAILED),
    (NotConnectedError, CONNECTION),
)


def explain(error: Exception) -> str:
    """Return an error's text for one line: of an OSError the file, if it names one, and the cause without its code."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    # Of a file that cannot be moved, its new place.
    name = error.filename2 or error.filename
    return error.strerror if name is None else f"{name}: {error.strerror}"


def code_of(error: ClientError) -> int:
    """Return the exit code for an error of a client."""
    if error.code == E_LIMIT:
        # The server does not offer what was requested.
        return FAILED
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
