"""Why SQLite failed: its error codes as the few causes that callers tell apart."""

from enum import Enum
from typing import Final


class Cause(Enum):
    """The cause of an SQLite error: the file, or the call."""

    #: The file does not hold what was written: SQLite's structure, the tables, or a value.
    DAMAGED = "damaged"
    #: The file is no SQLite database.
    NOT_A_DATABASE = "not a database"
    #: The disk, or the limit of the file, leaves no room.
    FULL = "full"
    #: Another connection holds a lock.
    BUSY = "busy"
    CANNOT_OPEN = "cannot open"
    OTHER = "other"


# SQLite's result codes: https://sqlite.org/rescode.html. Callers run fixed statements only, so that the general code 1
# means that a table or column is not there.
_CAUSES: Final = {
    1: Cause.DAMAGED,
    5: Cause.BUSY,
    6: Cause.BUSY,
    11: Cause.DAMAGED,
    13: Cause.FULL,
    14: Cause.CANNOT_OPEN,
    26: Cause.NOT_A_DATABASE,
}
# Python 3.10 has no ``sqlite_errorcode``: there the fixed texts of ``sqlite3_errstr`` stand for the codes.
_CODES: Final = {
    "database is locked": 5,
    "database table is locked": 6,
    "attempt to write a readonly database": 8,
    "interrupted": 9,
    "disk I/O error": 10,
    "database or disk is full": 13,
    "unable to open database file": 14,
    "file is not a database": 26,
}
_BY_CLASS: Final = {"DatabaseError": 11, "OperationalError": 1}


def cause(error: Exception) -> Cause:
    """Return the cause of a ``sqlite3.Error``, or of an error in converting a value that was read.

    TypeError and ValueError, which includes UnicodeDecodeError, mean a damaged file.
    """
    if isinstance(error, TypeError | ValueError):
        return Cause.DAMAGED
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Also on later Pythons for text that is not UTF-8: an OperationalError that the module itself raises.
        code = _CODES.get(str(error)) or _BY_CLASS.get(type(error).__name__, 0)
    # An extended code has the code in its lowest byte.
    return _CAUSES.get(code & 0xFF, Cause.OTHER)


def one_line(error: Exception) -> str:
    """Return the text of an error without line ends: SQLite quotes what it finds in the file."""
    return " ".join(str(error).split())
