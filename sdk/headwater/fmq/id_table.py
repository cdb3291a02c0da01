"""A table of message ids: what waits for an answer, and what waits to be answered."""

from headwater.fmq.message_id import same
from headwater.fmq.spec import ID_SIZE
from headwater.wire import const

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

_TURNS = const(256)


class IdTable:
    """``places`` ids, each with a ``state`` that is the user's, but 0 (free), and ``more``, a number up to 255.

    A place has another number each time it is taken, up to 256 times, so that what is late is not mistaken for another.
    Nothing allocates after construction.
    """

    def __init__(self, places: int):
        if not 0 < places < 256:
            raise ValueError("a table has 1 to 255 places")
        self.places = places
        self.state = bytearray(places)
        self.more = bytearray(places)
        self.ids = bytearray(places * ID_SIZE)
        self.sizes = bytearray(places)
        self._turns = bytearray(places)

    def free(self) -> int:
        """A free place, or -1."""
        for i in range(self.places):
            if not self.state[i]:
                return i
        return -1

    def put(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Take the free place ``i`` for the id ``buf[at:end]``."""
        self._turns[i] = (self._turns[i] + 1) % _TURNS
        self.more[i] = 0
        self.rename(i, state, buf, at, end)

    def rename(self, i: int, state: int, buf: "Bytes", at: int, end: int) -> None:
        """Put another id into its place."""
        self.state[i] = state
        self.sizes[i] = end - at
        i *= ID_SIZE
        while at < end:
            self.ids[i] = buf[at]
            i += 1
            at += 1

    def find(self, state: int, buf: "Bytes", at: int, end: int) -> int:
        """The place of an id in this state, or -1."""
        n = end - at
        for i in range(self.places):
            if self.state[i] == state and self.sizes[i] == n and same(buf, at, end, self.ids, i * ID_SIZE):
                return i
        return -1

    def number(self, i: int) -> int:
        """The number of a place, from 1 on."""
        return self._turns[i] * self.places + i + 1

    def place(self, number: int) -> int:
        """The place with this number, or -1 when it is another's by now, or nobody's."""
        i = (number - 1) % self.places
        return i if self.state[i] and self.number(i) == number else -1
