"""Clients with a thread, polled clients, and the floor: the raw socket."""

from __future__ import annotations

import select
import socket
import threading
from typing import Any

from tools.bench.hosts.job import (
    GROUP,
    HOST,
    MARK,
    SIZE,
    TOPIC,
    TOPIC_BYTES,
    WINDOWS,
    Incoming,
    Job,
    Outgoing,
    packet,
)

_TIMEOUT_S = 60


class Bench:
    """The interface of `aio.AsyncBench`, blocking."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.client: Any = None

    def connect(self) -> None:
        raise NotImplementedError

    def publish(self, outgoing: Outgoing) -> None:
        raise NotImplementedError

    def receive(self, incoming: Incoming) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Floor(Bench):
    """The socket with packets made beforehand: one write for each, reads of 64 KB, answers found by stride.

    It examines nothing except one byte of each answer at QoS 2, to distinguish PUBREC from PUBCOMP.
    """

    BATCH = 1

    def connect(self) -> None:
        self.socket = connection = join(self.job.port, b"bench-floor")
        if self.job.task == "receive":
            subscribe(connection, self.job.qos)
        # As many packet identifiers as the window has, in turn.
        self.packets = [packet(self.job.qos, i) for i in range(WINDOWS[self.job.qos])]

    def publish(self, outgoing: Outgoing) -> None:
        if self.job.qos == 0:
            self._publish_0(outgoing)
        else:
            self._publish_acknowledged(outgoing)

    def _publish_0(self, outgoing: Outgoing) -> None:
        block = self.packets[0] * self.BATCH
        write = self.socket.sendall
        for i, _ in enumerate(outgoing):
            if i % self.BATCH == 0:
                write(block)
        name = MARK.encode()
        write(bytes((0x32, len(name) + 4, 0, len(name))) + name + b"\x00\x01")
        read(self.socket, 4)

    def _publish_acknowledged(self, outgoing: Outgoing) -> None:
        last = 0x40 if self.job.qos == 1 else 0x70
        write = self.socket.sendall
        packets = self.packets
        # Free packet identifiers, oldest first.
        window = len(packets)
        under_way = next_id = 0
        rest = b""
        for _ in outgoing:
            if under_way == window:
                done, rest = self._answers(rest, last)
                under_way -= done
            write(packets[next_id])
            under_way += 1
            next_id = next_id + 1 if next_id + 1 < window else 0
        while under_way:
            done, rest = self._answers(rest, last)
            under_way -= done

    def _answers(self, rest: bytes, last: int) -> tuple[int, bytes]:
        """Read answers and answer PUBREC; return the number of completed messages and the incomplete rest."""
        while True:
            data = rest + some(self.socket)
            whole = len(data) & ~3
            rest = data[whole:]
            done = data[:whole:4].count(last)
            if done * 4 < whole:
                release = bytearray()
                for i in range(0, whole, 4):
                    if data[i] == 0x50:
                        release += b"\x62\x02" + data[i + 2 : i + 4]
                self.socket.sendall(release)
            if done:
                return done, rest

    def receive(self, incoming: Incoming) -> None:
        qos = self.job.qos
        size = len(packet(qos, 0))
        id_at = 4 + len(TOPIC_BYTES)
        rest = b""
        while True:
            data = rest + some(self.socket)
            whole = len(data) // size * size
            rest = data[whole:]
            if qos and whole:
                answer = bytearray(b"\x40\x02\x00\x00" * (whole // size))
                answer[2::4] = data[id_at:whole:size]
                answer[3::4] = data[id_at + 1 : whole : size]
                self.socket.sendall(answer)
            for end in range(size, whole + 1, size):
                if incoming.take(data[end - SIZE : end]):
                    return

    def close(self) -> None:
        self.socket.close()


class Blocks(Floor):
    """The floor with many packets in a write: the broker's limit."""

    BATCH = GROUP


class Paho(Bench):
    """Its thread sends and receives; the program waits while the window is full."""

    def connect(self) -> None:
        import paho.mqtt.client as mqtt

        self.client = client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        ready = threading.Event()
        self.over = threading.Event()
        client.max_inflight_messages_set(WINDOWS[self.job.qos])
        client.on_message = lambda _client, _data, message: self._on_message(message.payload)
        client.on_subscribe = lambda *_: ready.set()
        client.on_connect = lambda *_: ready.set()
        client.connect(HOST, self.job.port)
        client.loop_start()
        wait(ready)
        if self.job.task == "receive":
            ready.clear()
            client.subscribe(TOPIC, self.job.qos)
            wait(ready)

    def publish(self, outgoing: Outgoing) -> None:
        send = self.client.publish
        qos = self.job.qos
        under_way = threading.Semaphore(WINDOWS[qos])
        self.client.on_publish = lambda *_: under_way.release()
        if qos == 0:
            for body in outgoing:
                send(TOPIC, body, 0)
            send(MARK, b"", 1).wait_for_publish(_TIMEOUT_S)
            return
        for body in outgoing:
            under_way.acquire(timeout=_TIMEOUT_S)
            send(TOPIC, body, qos)
        for _ in range(WINDOWS[qos]):
            under_way.acquire(timeout=_TIMEOUT_S)

    def _on_message(self, body: bytes) -> None:
        if self.incoming.take(body):
            self.over.set()

    def receive(self, incoming: Incoming) -> None:
        self.incoming = incoming
        wait(self.over)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Pymosquitto(Bench):
    """The C library, whose thread sends and receives; it queues what exceeds the window."""

    def connect(self) -> None:
        from pymosquitto import Mosquitto
        from pymosquitto.constants import Option

        self.client = client = Mosquitto()
        client.int_option(Option.TCP_NODELAY, 1)
        client.max_inflight_messages_set(WINDOWS[self.job.qos])
        ready = threading.Event()
        self.over = threading.Event()
        client.on_connect = lambda *_: ready.set()
        client.on_subscribe = lambda *_: ready.set()
        client.on_message = lambda _client, _data, message: self._on_message(message.payload)
        client.connect_async(HOST, self.job.port)
        client.loop_start()
        wait(ready)
        if self.job.task == "receive":
            ready.clear()
            client.subscribe(TOPIC, self.job.qos)
            wait(ready)

    def publish(self, outgoing: Outgoing) -> None:
        send = self.client.publish
        qos = self.job.qos
        done = threading.Event()
        sent = acknowledged = 0
        is_all = False

        def on_publish(*_: object) -> None:
            nonlocal acknowledged
            acknowledged += 1
            if is_all and acknowledged >= sent:
                done.set()

        self.client.on_publish = on_publish
        for body in outgoing:
            send(TOPIC, body, qos)
            sent += 1
        if qos == 0:
            # It calls back for these as well, when they are written.
            sent += 1
            is_all = True
            send(MARK, b"", 1)
        else:
            is_all = True
            if acknowledged >= sent:
                return
        wait(done)

    def _on_message(self, body: bytes) -> None:
        if self.incoming.take(body):
            self.over.set()

    def receive(self, incoming: Incoming) -> None:
        self.incoming = incoming
        wait(self.over)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop(False)


class Chumicro(Bench):
    """Polled: `handle` once per turn, with a window of 20 at QoS 1."""

    WINDOW = 20

    def connect(self) -> None:
        from chumicro_mqtt import MQTTClient
        from chumicro_timing import ticks_ms

        self.ticks_ms = ticks_ms
        self.client = client = MQTTClient.from_config(
            {"mqtt.broker.host": HOST, "mqtt.broker.port": self.job.port, "mqtt.client_id": "bench-host"},
            rx_buffer_size=65536,
            recv_budget_per_tick=65536,
        )
        client.on_message = self._on_message
        client.connect()
        while client.state != "connected":
            client.handle(ticks_ms())
        endpoint = client.io_socket
        endpoint = getattr(endpoint, "sock", endpoint)
        getattr(endpoint, "_sock", endpoint).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.poll = select.poll()
        self.poll.register(endpoint.fileno(), select.POLLIN)
        self.is_over = False
        if self.job.task == "receive":
            ready: list[int] = []
            client.subscribe(TOPIC, self.job.qos, on_subscribe=lambda *_: ready.append(1))
            while not ready:
                client.handle(ticks_ms())

    def publish(self, outgoing: Outgoing) -> None:
        client = self.client
        handle = client.handle
        ticks_ms = self.ticks_ms
        done = 0

        def on_publish(*_: object) -> None:
            nonlocal done
            done += 1

        if self.job.qos == 0:
            for body in outgoing:
                client.publish(TOPIC, body)
                handle(ticks_ms())
            while client.io_interest(0) & 2:
                handle(ticks_ms())
            client.publish(MARK, b"", qos=1, on_publish=on_publish)
            sent = 1
        else:
            sent = 0
            for body in outgoing:
                while sent - done >= self.WINDOW:
                    handle(ticks_ms())
                client.publish(TOPIC, body, qos=1, on_publish=on_publish)
                sent += 1
                handle(ticks_ms())
        while done < sent:
            handle(ticks_ms())

    def _on_message(self, topic: str, body: bytes) -> None:
        if self.incoming.take(bytes(body)):
            self.is_over = True

    def receive(self, incoming: Incoming) -> None:
        self.incoming = incoming
        client = self.client
        while not self.is_over:
            self.poll.poll(100)
            client.handle(self.ticks_ms())

    def close(self) -> None:
        self.client.disconnect()


def wait(event: threading.Event) -> None:
    """Wait for an event with a timeout."""
    if not event.wait(_TIMEOUT_S):
        raise TimeoutError("the broker did not answer")


def join(port: int, client_id: bytes, *, clean: bool = True) -> socket.socket:
    """Return a socket that the broker has accepted as `client_id`."""
    connection = socket.create_connection((HOST, port), timeout=_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04%c\x00\x00" % (clean << 1) + len(client_id).to_bytes(2, "big") + client_id
    connection.sendall(bytes((0x10, len(body))) + body)
    answer = read(connection, 4)
    if answer[:2] != b"\x20\x02" or answer[3]:
        raise ConnectionError("the broker did not accept the connection")
    return connection


def subscribe(connection: socket.socket, qos: int, topic: bytes = TOPIC_BYTES) -> None:
    """Send SUBSCRIBE and wait for SUBACK."""
    name = len(topic).to_bytes(2, "big") + topic
    connection.sendall(bytes((0x82, len(name) + 3, 0, 1)) + name + bytes((qos,)))
    if read(connection, 5) != bytes((0x90, 3, 0, 1, qos)):
        raise ConnectionError("the broker did not accept the subscription")


def some(connection: socket.socket) -> bytes:
    """Read at least one byte."""
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data


def read(connection: socket.socket, n: int) -> bytes:
    """Read exactly `n` bytes."""
    data = b""
    while len(data) < n:
        more = connection.recv(n - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data
