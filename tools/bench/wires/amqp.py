"""AMQP 1.0: Qpid Proton against RabbitMQ, or against Proton where RabbitMQ lacks a settlement mode."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proton import Delivery, Link, Message
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector, LinkOption
from proton.utils import BlockingConnection

from tools.bench.wires.message import CLIENT_ID, TOPIC
from tools.bench.wires.meter import SECONDS, Session, costs
from tools.broker import HOST, free_port
from tools.rabbitmq import RabbitMqAmqp

#: From delivery 257 of a session on, its number has four bytes, as in long connections.
WARM = 300

#: Whether each message contains its topic, which a link for several topics requires.
PROTOCOLS = {"AMQP 1.0, a link for each topic": False, "AMQP 1.0, topic as subject": True}
_QUEUE = "/queue/telemetry"
# Settlement modes of sender and receiver by QoS.
_MODES = (
    (Link.SND_SETTLED, Link.RCV_FIRST),
    (Link.SND_UNSETTLED, Link.RCV_FIRST),
    (Link.SND_UNSETTLED, Link.RCV_SECOND),
)


class _Settlement(LinkOption):  # type: ignore[misc]  # without the peers it is Any
    def __init__(self, qos: int) -> None:
        self._modes = _MODES[qos]

    def apply(self, link: Any) -> None:
        link.snd_settle_mode, link.rcv_settle_mode = self._modes


def session(protocol: str, payload: bytes, qos: int) -> Session:
    """Run a publisher's session with one of `PROTOCOLS`."""

    def run(port: int, singly: int, together: int) -> None:
        message = Message(body=payload, inferred=True, durable=qos > 0)
        if PROTOCOLS[protocol]:
            message.subject = TOPIC.decode()
        container = Container()
        container.container_id = CLIENT_ID.decode()
        connection = BlockingConnection(
            f"amqp://guest:guest@{HOST}:{port}",
            timeout=SECONDS,
            container=container,
            allowed_mechs="PLAIN ANONYMOUS",
            allow_insecure_mechs=True,
        )
        sender = connection.create_sender(_QUEUE, name="telemetry", options=_Settlement(qos))

        def send(count: int) -> None:
            connection.wait(lambda: sender.link.credit >= count)
            deliveries = [sender.link.send(message) for _ in range(count)]
            if qos:
                connection.wait(lambda: all(one.remote_state for one in deliveries))
                if any(one.remote_state != Delivery.ACCEPTED for one in deliveries):
                    raise ConnectionError("a message was not accepted")
                for one in deliveries:
                    one.settle()

        for _ in range(singly):
            send(1)
        send(together)
        connection.close()

    return run


@contextlib.contextmanager
def rabbitmq() -> Iterator[int]:
    """Run RabbitMQ with a durable queue and yield its port."""
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder,
        RabbitMqAmqp(Path(folder)) as broker,
    ):
        yield broker.port


class _Receiver(MessagingHandler):  # type: ignore[misc]
    """Accept everything; in mode `second`, settle what the sender has settled."""

    def __init__(self, port: int) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.started = threading.Event()
        self._port = port

    def on_start(self, event: Any) -> None:
        self._container = event.container
        self._container.listen(f"{HOST}:{self._port}")
        self.started.set()

    def on_link_opening(self, event: Any) -> None:
        event.link.target.copy(event.link.remote_target)
        event.link.rcv_settle_mode = event.link.remote_rcv_settle_mode

    def on_link_opened(self, event: Any) -> None:
        # Grant credit once, as RabbitMQ does.
        event.link.flow(1 << 16)

    def on_message(self, event: Any) -> None:
        event.delivery.update(Delivery.ACCEPTED)
        if event.link.remote_rcv_settle_mode != Link.RCV_SECOND:
            event.delivery.settle()

    def on_settled(self, event: Any) -> None:
        event.delivery.settle()

    def on_stop(self, _: Any) -> None:
        self._container.stop()


@contextlib.contextmanager
def proton() -> Iterator[int]:
    """Run Proton as a receiver and yield its port."""
    port = free_port()
    handler, stop = _Receiver(port), EventInjector()
    container = Container(handler)
    container.selectable(stop)
    thread = threading.Thread(target=container.run, daemon=True)
    thread.start()
    if not handler.started.wait(SECONDS):
        raise ConnectionError("Proton does not listen")
    try:
        yield port
    finally:
        stop.trigger(ApplicationEvent("stop"))
        thread.join(SECONDS)


def check(port: int) -> None:
    """Check on the wire that Proton uses the requested settlement modes and the subject. Raises ValueError."""
    link, subject = PROTOCOLS
    settled, first, second = (costs(session(link, bytes(200), qos), port, WARM)[0] for qos in (0, 1, 2))
    named = costs(session(subject, bytes(200), 0), port, WARM)[0]
    if (
        # Credit is granted once.
        not settled.down == 0 < first.down == second.down
        # The sender's disposition is a frame, and a frame header has eight bytes.
        or not settled.up < first.up < second.up - 8
        or not named.up - settled.up > len(TOPIC)
    ):
        raise ValueError(
            f"AMQP's settlement modes are not visible on the wire: {settled}, {first}, {second}, {named}"
        )
