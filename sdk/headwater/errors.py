"""Status codes, and the party at fault for each.

Functions of the core return an integer: 0 or more is success, less than 0 is one of these codes. A range of
codes belongs to one cause, so that one comparison decides what to do: correct the program (caller), close the
connection (peer), or try again later or with larger buffers (room). ``headwater.reasons`` has names and texts; a
board need not import it.
"""

from headwater.wire import const

# Defined elsewhere: -28, -58 and -59 in ``headwater.fmq.spec``, -7 and -8 in ``headwater.ibmmq.segments``.

# The caller's fault: the call had no effect.
E_TOPIC = const(-1)
E_FILTER = const(-2)
E_QOS = const(-3)
E_STATE = const(-4)
E_ARGUMENT = const(-5)
E_UNKNOWN_ID = const(-6)

# No room, or not now: the call had no effect, and may succeed later (AGAIN, WINDOW, OFFLINE) or with larger
# buffers.
E_AGAIN = const(-20)
E_WINDOW = const(-21)
E_OFFLINE = const(-22)
E_TOO_LARGE = const(-23)
E_RX_TOO_LARGE = const(-24)
E_RX_WINDOW = const(-25)
E_STORE = const(-26)
E_LIMIT = const(-27)

# The peer's fault: the connection ends.
E_LENGTH = const(-40)
E_TYPE = const(-41)
E_FLAGS = const(-42)
E_RX_QOS = const(-43)
E_SIZE = const(-44)
E_FIELD = const(-45)
E_UTF8 = const(-46)
E_RX_TOPIC = const(-47)
E_PACKET_ID = const(-48)
E_PROTOCOL = const(-49)
E_UNEXPECTED = const(-50)
E_ACK_KIND = const(-51)
E_CODE = const(-52)
E_TRUNCATED = const(-53)
E_PROPERTY = const(-54)
E_REPEATED = const(-55)
E_VALUE = const(-56)
E_ALIAS = const(-57)

# Failures of the connection.
E_REFUSED = const(-60)
E_TIMEOUT = const(-61)
E_CLOSED = const(-62)
E_UNREACHABLE = const(-63)
E_DISCONNECTED = const(-64)
E_AUTH = const(-65)

CALLER = const(1)
ROOM = const(2)
PEER = const(3)
CONNECTION = const(4)


def blame(code: int) -> int:
    """Return the cause of a code: 0 (no error), CALLER, ROOM, PEER or CONNECTION."""
    if code >= 0:
        return 0
    if code > -20:
        return CALLER
    if code > -40:
        return ROOM
    return PEER if code > -60 else CONNECTION


def name_of(code: int) -> str:
    """Return the name of the status constant, for instance ``E_TIMEOUT``, or a text. Allocates."""
    # Imported here: in a component the names are a separate file, which a program without errors does not load.
    from headwater import errors

    for name, value in errors.__dict__.items():
        if name[:2] == "E_" and value == code:
            return name
    return f"status {code}"


class HeadwaterError(Exception):
    """An error of a method that raises instead of returning a status; ``code`` is the status."""

    def __init__(self, code: int, detail: str = ""):
        name = name_of(code)
        super().__init__(f"{name}: {detail}" if detail else name)
        self.code = code
        self.detail = detail
