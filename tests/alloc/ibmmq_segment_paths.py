# paths: from a stream, from a function, of unknown length, short reads, no segment, a group, a client that has to wait
# paths: abandoned, a source that is too short, a source that is too long, group ids, run, in EBCDIC
# paths: through mqtt at qos 0, through mqtt at qos 1, through mqtt at qos 2, through fmq
# frames: through mqtt at qos 0, through mqtt at qos 1, through mqtt at qos 2, through fmq
"""Segmenting: messages from their beginning to their end; and through clients with room for a few segments."""

from dialers import Dialer
from fmq_line import Line
from pairs import OnLine
from prove import prove

from headwater.errors import E_OFFLINE, E_STATE, E_WINDOW
from headwater.fmq.client import Client as FmqClient
from headwater.ibmmq.segments import DONE, E_EARLY, E_LATE, LATER, MORE, GroupIds, Segmenter
from headwater.mqtt.server import ServerSession
from headwater.mqtt.session import ClientSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headwater.types import Bytes

TOPIC = b"board/log"
PIECE = 64
LENGTH = 3 * PIECE + 5


def fill(buf: "Any", at: int, n: int) -> None:
    while n:
        n -= 1
        buf[at + n] = n


class Stream:
    """``left`` bytes, at most ``most`` at a time, and every second time none."""

    def __init__(self) -> None:
        self.left = 0
        self.most = 1 << 16
        self.slow = False
        self.asked = 0

    def readinto(self, buf: "Any") -> "int | None":
        self.asked += 1
        if self.slow and self.asked & 1:
            return None
        n = min(len(buf), self.left, self.most)
        self.left -= n
        fill(buf, 0, n)
        return n


class Taker:
    def __init__(self) -> None:
        self.messages = self.bytes = self.waits = 0
        self.later = 0

    def publish(self, topic: "Bytes", payload: "Bytes", qos: int) -> int:
        if self.later and (self.messages + self.waits) & 1:
            self.waits += 1
            return self.later
        self.messages += 1
        self.bytes += len(payload)
        return self.messages & 1

    def wait(self, ms: int) -> int:
        return 0


class On:
    """A segmenter over a client; the methods without an underscore are the paths to be proved."""

    def __init__(self, client: "Any", **options: "Any") -> None:
        self.client = client
        self.stream = Stream()
        self.ids = GroupIds(b"board", b"\x01\x02")
        self.s = Segmenter(client, bytearray(72 + PIECE), self.ids, **options)
        self.qos = 1
        self.buf = bytearray(24)
        self._function = self._source

    def _source(self, buf: bytearray, at: int, n: int) -> int:
        stream = self.stream
        if n > stream.left:
            n = stream.left
        stream.left -= n
        fill(buf, at, n)
        return n

    def _sent(self, length: "int | None", source: "Any" = None, last: bool = False) -> None:
        assert self.s.begin(TOPIC, source or self.stream, length, self.qos, last) == 0
        assert self._stepped() == DONE

    def _stepped(self) -> int:
        while True:
            status = self.s.step()
            if status <= 0:
                return status
            if status == LATER:
                self.client.wait(1)

    def from_stream(self) -> None:
        self.stream.left = LENGTH
        self._sent(LENGTH)

    def function(self) -> None:
        self.stream.left = LENGTH
        self._sent(LENGTH, self._function)

    def unknown(self) -> None:
        self.stream.left = LENGTH
        self._sent(None)

    def short(self) -> None:
        self.stream.most = 21
        self.stream.slow = True
        self.stream.left = LENGTH
        self._sent(LENGTH)
        self.stream.most = 1 << 16
        self.stream.slow = False

    def single(self) -> None:
        self.stream.left = 5
        self._sent(5)

    def group(self) -> None:
        assert self.s.begin_group() == 0
        for _ in range(3):
            self.stream.left = LENGTH
            self._sent(LENGTH)
        self.stream.left = 5
        self._sent(None, None, True)

    def waits(self) -> None:
        self.client.later = E_WINDOW
        self.stream.left = LENGTH
        self._sent(LENGTH)
        self.client.later = E_OFFLINE
        self.stream.left = LENGTH
        self._sent(None)
        self.client.later = 0

    def abandoned(self) -> None:
        self.stream.left = LENGTH
        assert self.s.begin_group() == 0
        assert self.s.begin(TOPIC, self.stream) == 0
        assert self.s.step() == MORE
        self.s.abandon()
        assert self.s.step() == E_STATE

    def early(self) -> None:
        self.stream.left = LENGTH - 1
        assert self.s.begin(TOPIC, self.stream, LENGTH) == 0
        assert self._stepped() == E_EARLY

    def late(self) -> None:
        self.stream.left = LENGTH
        assert self.s.begin(TOPIC, self.stream, 2 * PIECE) == 0
        assert self._stepped() == E_LATE

    def next_id(self) -> None:
        assert self.ids.put_next(self.buf, 0) == 24

    def run(self) -> None:
        self.client.later = E_WINDOW
        self.stream.left = LENGTH
        assert self.s.begin(TOPIC, self.stream, LENGTH) == 0
        assert self.s.run() == DONE
        self.client.later = 0


def prove_taker() -> None:
    on = On(Taker())
    prove("from a stream", on.from_stream)
    prove("from a function", on.function)
    prove("of unknown length", on.unknown)
    prove("short reads", on.short)
    prove("no segment", on.single)
    prove("a group", on.group, 20)
    prove("a client that has to wait", on.waits, 20)
    prove("abandoned", on.abandoned)
    prove("a source that is too short", on.early)
    prove("a source that is too long", on.late)
    prove("group ids", on.next_id, 300)
    prove("run", on.run)
    prove("in EBCDIC", On(Taker(), big=False, ccsid=500).unknown)


def prove_clients() -> None:
    line = OnLine(
        ClientSession(b"board", clean_start=False, keep_alive=0, tx_size=256, outbox_size=512, slots=4),
        ServerSession(rx_size=2048, tx_size=512, outbox_size=512, slots=4),
    )
    on = On(line.client)
    for qos in (0, 1, 2):
        on.qos = qos
        prove("through mqtt at qos %d" % qos, on.unknown, 20)
    client = FmqClient(
        Dialer(Line()), b"board", clean_start=False, keep_alive=0, tx_size=256, outbox_size=512, slots=4
    )
    client.connect()
    prove("through fmq", On(client).unknown, 20)


prove_taker()
prove_clients()
