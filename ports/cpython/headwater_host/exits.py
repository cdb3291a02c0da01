"""How a command ends: the exit codes of ``headwater``, and the error that leads to one of them."""

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
#: The work could not be done: the server refused, a packet is malformed, a log is damaged.
FAILED = 1
#: The command line, a configuration or an input value is wrong.
USAGE = 2
#: No connection, or it was lost.
CONNECTION = 3
#: Something did not come in time.
TIMED_OUT = 4
#: 128 + n: ended by signal n before the work was done.
SIGNALLED = 128


class CommandError(Exception):
    """Ends a command with a message and an exit code; no traceback is shown."""

    def __init__(self, text: str, code: int = FAILED):
        super().__init__(text)
        self.code = code


# The first that fits.
_CODES: tuple[tuple[type[ClientError], int], ...] = (
    (ArgumentError, USAGE),
    (TimedOutError, TIMED_OUT),
    (ConnectRefusedError, FAILED),
    (ProtocolError, FAILED),
    (NotConnectedError, CONNECTION),
)


def code_of(error: ClientError) -> int:
    """The exit code for an error of the client."""
    if error.code == E_LIMIT:
        # The server has said what it does not do.
        return FAILED
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
