"""The peers of the measured clients: mosquitto, a hub and canned peers, on their own processor."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headwater.fmq.client import Client
from tools.bench import canned
from tools.bench.dialects import MQTT, PAYLOAD, TOPIC
from tools.bench.wires.ours import Dialer
from tools.broker import BrokerError, Mosquitto
from tools.toolchain import ROOT

#: Client identifier in ``device/common.py``; the peers store messages for it.
_CLIENT_ID = b"bench-device"
_BATCH = 16
_TURN_MS = 20
_FLUSH_MS = 60000


def _pin(pid: int, cpu: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


@contextlib.contextmanager
def _hub(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a hub in a process with its storage on disk: its port and process id."""
    words = [
        sys.executable,
        "-m",
        "headwater_host",
        "hub",
        "--port",
        "0",
        "--storage",
        str(folder / "hub.db"),
    ]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.search(r"listening on \S+, port (\d+)", said)
            if not found:
                raise BrokerError(f"the hub does not start: {said}{process.stderr.read()}")
            yield int(found[1]), process.pid
        finally:
            process.terminate()


class Peers:
    """mosquitto, a hub and the canned peers, on their own processor, as a context manager."""

    def __init__(self, cpu: int) -> None:
        self._cpu = cpu
        self._ports: dict[str, int] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Peers:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-bench-"))
            broker = Mosquitto(Path(folder), settings={"log_type": "error"})
            stack.enter_context(broker)
            _pin(broker.pid, self._cpu)
            self._ports["mosquitto"] = broker.port
            self._ports["hub"], pid = stack.enter_context(_hub(Path(folder)))
            _pin(pid, self._cpu)
            for kind in canned.KINDS:
                port, process = stack.enter_context(canned.running(kind, ROOT))
                _pin(process.pid, self._cpu)
                self._ports[kind] = port
                self._processes[kind] = process
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def port(self, kind: str) -> int:
        """Return the port of a peer."""
        return self._ports[kind]

    def bytes_read(self, kind: str) -> int:
        """Return the number of bytes that the canned peer read on the connection that just ended."""
        output = self._processes[kind].stdout
        assert output is not None
        return int(output.readline())

    def queue(self, kind: str, qos: int, messages: int) -> None:
        """Let mosquitto or the hub store messages for the client, which is offline."""
        {"mosquitto": _queue_mqtt, "hub": _queue_fmq}[kind](self._ports[kind], qos, messages)


def _queue_fmq(port: int, qos: int, messages: int) -> None:
    _fmq(port, _CLIENT_ID, clean_start=True).disconnect()
    subscriber = _fmq(port, _CLIENT_ID, clean_start=False)
    granted: list[int] = []
    subscriber.on_answer = lambda _, code: granted.append(code)
    subscriber.subscribe(TOPIC)
    while not granted:
        subscriber.wait(_TURN_MS)
    subscriber.disconnect()
    publisher = _fmq(port, b"bench-host", clean_start=True)
    for _ in range(messages):
        while publisher.publish(TOPIC, PAYLOAD, qos) < 0:
            publisher.wait(_TURN_MS)
    publisher.flush(_FLUSH_MS)
    publisher.disconnect()


def _fmq(port: int, name: bytes, clean_start: bool) -> Client:
    client = Client(Dialer(port), name, clean_start=clean_start, slots=200, window=200, outbox_size=1 << 16)
    client.connect()
    return client


def _queue_mqtt(port: int, qos: int, messages: int) -> None:
    _session(port, _CLIENT_ID, clean_start=True).close()
    with _session(port, _CLIENT_ID, clean_start=False) as subscriber:
        name = len(TOPIC).to_bytes(2, "big") + TOPIC
        subscriber.sendall(bytes([0x82, len(name) + 3, 0, 1]) + name + bytes([qos]))
        _expect(subscriber, bytes([0x90, 3, 0, 1, qos]))
        subscriber.sendall(b"\xe0\x00")
        while subscriber.recv(16):
            pass
    with _session(port, b"bench-host", clean_start=True) as publisher:
        for _ in range(-(-messages // _BATCH)):
            publisher.sendall(b"".join(MQTT.publish(qos, i) for i in range(1, _BATCH + 1)))
            if qos == 1:
                _expect_kind(publisher, 0x40, _BATCH)
            else:
                _expect_kind(publisher, 0x50, _BATCH)
                publisher.sendall(b"".join(bytes([0x62, 2, 0, i]) for i in range(1, _BATCH + 1)))
                _expect_kind(publisher, 0x70, _BATCH)


def _session(port: int, client_id: bytes, clean_start: bool) -> socket.socket:
    connection = socket.create_connection((canned.HOST, port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04" + bytes([2 * clean_start, 0, 0, 0, len(client_id)]) + client_id
    connection.sendall(bytes([0x10, len(body)]) + body)
    _expect(connection, b"\x20\x02\x00\x00")
    return connection


def _read(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        more = connection.recv(n - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more
    return data


def _expect(connection: socket.socket, answer: bytes) -> None:
    got = _read(connection, len(answer))
    if got != answer:
        raise ConnectionError(f"the broker answered {got.hex()} instead of {answer.hex()}")


def _expect_kind(connection: socket.socket, head: int, count: int) -> None:
    got = _read(connection, 4 * count)
    if set(got[::4]) != {head}:
        raise ConnectionError(f"the broker answered {got.hex()} instead of {count} times {head:x}")
