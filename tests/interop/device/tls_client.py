"""A board's client over TLS; what it is to do comes as pairs in JSON: ``scenario``, and the arguments of ``Tls``."""

import gc
import json
import socket
import sys

import micropython

import headwater_board.tcp  # noqa: F401 - what is measured comes on top
from headwater.mqtt.client import Client

gc.collect()
before = gc.mem_alloc()
from headwater_board.tls import Tls  # noqa: E402

gc.collect()
module = gc.mem_alloc() - before

arguments = dict([json.loads(word) for word in sys.argv[1:]])
scenario = arguments.pop("scenario")
signal = arguments.pop("signal", 0)
response_ms = arguments.pop("response_ms", 10000)
for name in arguments.pop("as_bytes", ()):
    with open(arguments[name], "rb") as file:
        arguments[name] = file.read()
    del file
got: "list[bytes]" = []


def connect(**options: object) -> Client:
    client = Client(Tls(**arguments), b"board", clean_start=True, **options)
    client.on_message = lambda message: got.append(message.payload_bytes())
    client.connect()
    return client


def until(client: Client, count: int) -> None:
    while len(got) < count:
        assert client.wait(20) == 0, client.status


def echo() -> None:
    """Each QoS there and back, a message of many records, and the same client once more."""
    client = connect(rx_size=4096, tx_size=4096, outbox_size=30000)
    for _ in range(2):
        client.subscribe(b"tls/echo", 2)
        sent = [b"0", b"1", b"2", bytes(3500)]
        for qos, payload in enumerate(sent):
            assert client.publish(b"tls/echo", payload, min(qos, 2)) >= 0
        until(client, 4)
        # The server keeps the order within a QoS, not between them.
        assert sorted(got) == sorted(sent), got
        got.clear()
        client.disconnect()
        client.connect()
    client.disconnect()
    print("ok")


def fail() -> None:
    """Say why there is no connection; and that it is over."""
    client = Client(Tls(**arguments), b"board", clean_start=True)
    try:
        client.connect()
        print("connected")
    except OSError as error:
        print(type(error).__name__, error.args)
    assert not client.connected
    assert client.poll() < 0


def begin() -> None:
    """Connect without ever waiting inside: what ``poll`` says at the end, and why."""
    client = Client(Tls(**arguments), b"board", clean_start=True, response_ms=response_ms)
    status = client.begin_connect()
    while status == 0 and not client.connected:
        client.dialer.wait(20)
        status = client.poll()
    print(status, client.dialer.error)


def wrong() -> None:
    """What is no certificate."""
    try:
        Tls(**arguments)
        print("made")
    except (OSError, ValueError) as error:
        print(type(error).__name__, error.args)


def pending() -> None:
    """Many messages in one record, and nothing after it: waiting must not sleep over what TLS has decrypted."""
    client = connect(rx_size=256)
    while len(got) < 100:
        # If it slept it would do so for longer than this program may run.
        client.dialer.wait(600000)
        assert client.poll() == 0, client.status
    print([int(payload[:3]) for payload in got] == list(range(100)))


def flood() -> None:
    """Write pieces of every size until nothing more is taken, let the server know that it may read, and go on.

    What was refused is offered again in a piece of another size.
    """
    pattern = bytes([i % 251 for i in range(251 * 8)])
    dialer = Tls(**arguments)
    transport = dialer.open()
    sent = turn = refused = 0
    left = 2000
    while left:
        turn += 1
        n = transport.write(pattern, sent % 251, turn * 37 % 1500 + 1)
        if not n:
            if sent and not refused:
                s = socket.socket()
                s.connect(socket.getaddrinfo("127.0.0.1", signal)[0][-1])
                s.close()
            refused += 1 if sent else 0
            dialer.wait(1)
        else:
            sent += n
            left -= 1 if refused else 0
    while transport.write(b"", 0, 0) is None:
        dialer.wait(1)
    transport.close()
    print(sent)


def locked() -> None:
    """Publish at each QoS and receive, with the heap locked."""
    count = bytearray(1)
    client = connect()

    def taken(_: object) -> None:
        count[0] += 1

    client.on_message = taken
    answers: list[int] = []
    client.session.on_answer = lambda packet_id, code: answers.append(code)
    client.subscribe(b"tls/locked", 2)
    while not answers:
        assert client.wait(5) == 0
    topic = b"tls/locked"
    payload = b"16 bytes of data"
    micropython.heap_lock()
    for n in range(60):
        qos = n % 3
        while client.publish(topic, payload, qos) < 0:
            assert client.poll() == 0
        while count[0] <= n:
            assert client.poll() == 0
    micropython.heap_unlock()
    print(count[0])


def used() -> int:
    gc.collect()
    return gc.mem_alloc()


def heap() -> None:
    """What TLS adds to Python's heap, module, dialer and connection; its own memory is elsewhere under unix."""
    before = used()
    dialer = Tls(**arguments)
    transport = dialer.open()
    taken = module + used() - before
    transport.close()
    client = connect()
    before = used()
    # Connecting again leaves nothing behind.
    for _ in range(3):
        client.connect()
    print(taken, used() - before)


{
    "echo": echo,
    "fail": fail,
    "begin": begin,
    "wrong": wrong,
    "pending": pending,
    "flood": flood,
    "locked": locked,
    "heap": heap,
}[scenario]()
