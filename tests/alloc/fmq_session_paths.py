# paths: publish qos 0, publish qos 1, publish qos 2, publish with tags, window of qos 1, receive qos 0, receive qos 1
# paths: receive qos 2, a repetition is answered, consume, consume with acknowledgement, acknowledged by the application
# paths: poll, keep-alive, the hub's ping, reply to a call, large message to a sink, large message skipped
# paths: session refusals, a message refused, publish again after a cut, publish again after a cut at PUBREL
# paths: against a full transport
# frames: publish qos 0, publish qos 1, publish qos 2, publish with tags, window of qos 1, receive qos 1
# frames: receive qos 2, a repetition is answered, consume, consume with acknowledgement
# frames: acknowledged by the application, keep-alive, the hub's ping, reply to a call, large message to a sink
# frames: large message skipped, session refusals, a message refused, publish again after a cut
# frames: publish again after a cut at PUBREL, against a full transport
"""FMQ's client over memory, with a hub that answers at once: every path that runs after connecting."""

from dialers import Dialer
from fmq_line import SUBSCRIPTION, TIME, Line, made
from prove import prove, prove_session

from headwater.connection import ACCEPT, OPEN, send_request
from headwater.fmq import calls
from headwater.fmq.client import Client
from headwater.fmq.frames import Frame, tag_list
from headwater.fmq.manual_ack import acknowledge
from headwater.fmq.queues import consume
from headwater.streaming import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headwater.types import Bytes

TOPIC = b"board/telemetry"
PAYLOAD = b"0123456789abcdef"
LARGE = bytes(1000)
TAGS = tag_list((b"eu", b"urgent"))
IDENT = b"\x31\x07\x00" + TIME
CALL = b"\xa1\x07\x00" + TIME
PING = b"\xc1\x07\x00" + TIME
PUBLISHED = [made(0x30 | qos << 1, IDENT, TOPIC, (), PAYLOAD) for qos in (0, 1, 2)]
PUBREL = made(0x60, IDENT)
CALLED = made(0x30, CALL, b"$rpc/sum", (), PAYLOAD)
PINGED = made(0xC0, PING)
CONSUMED = made(0xB0, IDENT, SUBSCRIPTION, None, (), PAYLOAD)
LARGE_1 = made(0x32, IDENT, TOPIC, (), LARGE)
LARGE_2 = made(0x34, IDENT, TOPIC, (), LARGE)


class On:
    """A connected client; the methods without an underscore are the paths to be proved."""

    def __init__(self) -> None:
        self.line = Line()
        self.dialer = Dialer(self.line)
        self.client = Client(
            self.dialer,
            b"board",
            keep_alive=10,
            clean_start=False,
            rx_size=256,
            tx_size=256,
            outbox_size=512,
            slots=4,
        )
        self.session = self.client.session
        self.client.connect()
        self.messages = self.delivered = self.refused = self.pieces = 0
        self.session.on_message = self._on_message
        self.session.on_call = self._on_call
        self.session.on_delivered = self._on_delivered
        self.session.on_refused = self._on_refused
        # Bound once, because binding allocates.
        self._reply = calls.reply
        self.stream = Stream(self)
        self.subscription = self.client.subscribe(b"jobs", group=b"g")
        assert self.client.poll() == 0

    def _on_message(self, f: Frame) -> None:
        self.messages += 1

    def _on_call(self, f: Frame) -> None:
        assert self._reply(self.session, f, PAYLOAD) == 0

    def _on_delivered(self, number: int) -> None:
        self.delivered += 1

    def _on_refused(self, number: int, code: int) -> None:
        assert code == 0x87
        self.refused += 1

    def open(self, f: Frame, size: int) -> bool:
        return True

    def write(self, buf: "Bytes", at: int, n: int) -> None:
        self.pieces += n

    def close(self, complete: bool) -> None:
        self.messages += 1

    def _settle(self) -> None:
        for _ in range(4):
            assert self.client.poll() == 0
        assert self.session.outbox.count == 0

    def publish(self, qos: int) -> None:
        before = self.delivered
        assert self.client.publish(TOPIC, PAYLOAD, qos) >= 0
        self._settle()
        assert self.delivered == before + (1 if qos else 0)

    def tags(self) -> None:
        assert self.client.publish(TOPIC, PAYLOAD, 1, True, TAGS) > 0
        self._settle()

    def window(self) -> None:
        while self.client.publish(TOPIC, PAYLOAD, 1) > 0:
            pass
        self._settle()

    def _take(self, data: bytes, answers: int = 0) -> None:
        before = self.messages
        answered = self.line.answers
        self.line.give(data)
        self._settle()
        assert self.messages == before + 1
        assert self.line.answers == answered + answers

    def receive(self, qos: int) -> None:
        if qos < 2:
            return self._take(PUBLISHED[qos], qos)
        # A PUBREC is answered with PUBCOMP by this hub, which is a stray: PUBREL is this one.
        before = self.messages
        self.line.give(PUBLISHED[2])
        self.line.give(PUBREL)
        self._settle()
        assert self.messages == before + 1
        return None

    def repetition(self) -> None:
        before = self.session.duplicates
        self.line.give(PUBLISHED[2])
        self.line.give(PUBLISHED[2])
        self.line.give(PUBREL)
        self._settle()
        assert self.session.duplicates == before + 1

    def consume(self) -> None:
        self._take(CONSUMED)

    def consume_1(self) -> None:
        self._take(CONSUMED, 1)

    def acknowledged(self) -> None:
        session = self.session
        session.auto_ack = False
        self._take(PUBLISHED[1])
        assert send_request(self.client, acknowledge(session, session.receipt)) == 0
        self._take(CONSUMED)
        assert send_request(self.client, acknowledge(session, session.receipt)) == 0
        self._take(PUBLISHED[2])
        assert send_request(self.client, acknowledge(session, session.receipt)) == 0
        session.auto_ack = True
        self.line.give(PUBREL)
        self._settle()

    def poll(self) -> None:
        self.dialer.now += 1
        assert self.client.poll() == 0

    def keep_alive(self) -> None:
        before = self.line.frames
        self.dialer.now += 8000
        self._settle()
        assert self.line.frames == before + 1
        assert not self.session.pinged

    def hubs_ping(self) -> None:
        before = self.line.answers
        self.line.give(PINGED)
        self._settle()
        assert self.line.answers == before + 1

    def call(self) -> None:
        before = self.line.frames
        self.line.give(CALLED)
        self._settle()
        assert self.line.frames == before + 1

    def _large(self, data: bytes) -> None:
        self.line.give(data)
        for _ in range(4):
            self._settle()

    def to_sink(self) -> None:
        self.session.stream = self.stream
        before = self.pieces
        self._large(LARGE_2)
        self._large(PUBREL)
        assert self.pieces == before + 1000

    def skipped(self) -> None:
        self.session.stream = None
        before = self.session.skipped
        self._large(LARGE_1)
        assert self.session.skipped == before + 1

    def refusals(self) -> None:
        client = self.client
        assert client.publish(TOPIC, PAYLOAD, 3) < 0
        assert client.publish(b"a/#", PAYLOAD, 1) < 0
        assert client.publish(TOPIC, LARGE, 0) < 0
        assert client.publish(TOPIC, LARGE, 1) < 0
        assert acknowledge(self.session, 99) < 0

    def message_refused(self) -> None:
        before = self.refused
        self.line.refuses = True
        assert self.client.publish(TOPIC, PAYLOAD, 1) > 0
        self._settle()
        self.line.refuses = False
        assert self.refused == before + 1

    def _again(self) -> None:
        """Another connection, but for what connecting allocates."""
        session = self.session
        session.lost()
        session.rx.clear()
        session.event(OPEN)
        session.event(ACCEPT)
        session.resume()

    def again(self) -> None:
        before = self.delivered
        self.line.room = 0
        assert self.client.publish(TOPIC, PAYLOAD, 2) > 0
        # None of it has left, for all that the session knows some has: the repetition carries DUP.
        self._again()
        self.line.room = 1 << 20
        self._settle()
        assert self.delivered == before + 1

    def again_at_pubrel(self) -> None:
        before = self.delivered
        assert self.client.publish(TOPIC, PAYLOAD, 2) > 0
        self.line.room = 0
        # PUBREC has arrived, PUBREL waits.
        assert self.client.poll() == 0
        self._again()
        self.line.room = 1 << 20
        self._settle()
        assert self.delivered == before + 1

    def full(self) -> None:
        self.line.room = 5
        assert self.client.publish(TOPIC, PAYLOAD) == 0
        self.line.room = 0
        while self.client.publish(TOPIC, PAYLOAD) == 0:
            pass
        self.line.room = 1 << 20
        assert self.client.poll() == 0
        assert self.session.out() == 0


on = On()
prove("publish with tags", on.tags)
prove("window of qos 1", on.window)
consume(on.client.session, on.subscription)
prove("consume", on.consume)
consume(on.client.session, on.subscription, 2, True)
prove("consume with acknowledgement", on.consume_1)
prove_session(on)
prove("the hub's ping", on.hubs_ping)
prove("reply to a call", on.call)
prove("a message refused", on.message_refused)
prove("against a full transport", on.full)
