"""The blocking client against a real mosquitto: many threads, time-outs, callbacks, the end of the interpreter."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headwater.mqtt import spec5
from headwater_host.client.blocking import Client, Delivery, Message
from headwater_host.client.mqtt import ConnectionOptions, Limits, SessionOptions, Will
from headwater_host.errors import ArgumentError, ClientError, NotConnectedError, ReentrantError, TimedOutError
from tools.broker import HOST, Mosquitto

pytestmark = pytest.mark.needs_mosquitto
StartBroker = Callable[..., Mosquitto]
THREADS = 8
EACH = 150


@pytest.fixture(scope="module")
def broker(mosquitto: StartBroker) -> Mosquitto:
    return mosquitto()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 200
    while names := [thread.name for thread in threading.enumerate() if thread.name.startswith("headwater-")]:
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


def client_of(broker: Mosquitto, **options: Any) -> Client:
    return Client(HOST, broker.port, **options)


def test_a_thread_that_publishes_for_each_message_gets_all_of_them(broker: Mosquitto) -> None:
    count = 300
    with client_of(broker, limits=Limits(queued_incoming=10)) as client, client_of(broker) as writer:
        client.subscribe("each", 1)
        for i in range(count):
            writer.post("each", i, 1)
        writer.drain(60)
        for i in range(count):
            assert client.get(60).payload == b"%d" % i
            client.publish("answers", i, 1, timeout=60)
        assert client.dropped_incoming == 0


def test_properties_of_5_0(broker: Mosquitto) -> None:
    client = client_of(
        broker, protocol="5.0", identifier="b5", session=SessionOptions(clean_start=False, expiry=100)
    )
    with client:
        assert "topic_alias_maximum" in client.server_properties
        options = spec5.NO_LOCAL
        client.subscribe("b5/mine", 1, options=options)
        client.subscribe("b5", 1, properties={"subscription_identifier": 5})
        for topic in ("b5/mine", "b5"):
            client.publish(topic, b"1", 1, properties={"content_type": "x"})
        message = client.get(10)
        assert str(message.topic) == "b5"
        assert message.properties == {"content_type": "x", "subscription_identifier": [5]}
        client.unsubscribe("b5", properties={"user_property": [("a", "b")]})
        client.disconnect_properties = {"session_expiry_interval": 0}
    with client:
        assert not client.session_present
        client.disconnect_properties = {"content_type": "x"}
        with pytest.raises(ArgumentError):
            client.disconnect()
        assert not client.connected


@pytest.mark.parametrize("call", ["publish", "post"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_many_threads_share_a_client(broker: Mosquitto, qos: int, call: str) -> None:
    topic = f"threads/{call}/{qos}"
    with client_of(broker) as reader, client_of(broker, limits=Limits(queued_outgoing=20)) as client:
        reader.subscribe(topic, qos=qos)

        def work(number: int) -> None:
            for i in range(EACH):
                getattr(client, call)(topic, f"{number} {i}", qos)

        with ThreadPoolExecutor(2 * THREADS) as pool:
            writers = [pool.submit(work, number) for number in range(THREADS)]
            # Readers of the same client, each message to one of them.
            readers = [
                pool.submit(lambda: [reader.get(30).payload for _ in range(EACH)]) for _ in range(THREADS)
            ]
            for writer in writers:
                writer.result(60)
            came = [payload for found in readers for payload in found.result(60)]
        client.drain()
        assert sorted(came) == sorted(b"%d %d" % (n, i) for n in range(THREADS) for i in range(EACH))
        with pytest.raises(TimedOutError):
            reader.get(0)


def test_messages_come_in_their_order_to_one_thread(broker: Mosquitto) -> None:
    with client_of(broker) as client:
        assert client.subscribe([("one/a", 1), ("one/b", 2)]) == (1, 2)
        for i in range(1000):
            client.post("one/a", i, 1)
        client.drain()
        assert [int(client.get(200).payload) for _ in range(1000)] == list(range(1000))
        client.unsubscribe(["one/a", "one/b"])
        client.publish("one/a", qos=1)
        with pytest.raises(TimedOutError, match="no message arrived in time"):
            client.get(0.05)


def test_time_outs_name_what_was_waited_for(broker: Mosquitto) -> None:
    with client_of(broker, limits=Limits(queued_outgoing=1), timeout=5) as client:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimedOutError, match="did not answer in time"):
                client.publish("late", b"", 1, timeout=0.05)
            with pytest.raises(TimedOutError, match="no room"):
                client.post("late", b"", 1, timeout=0.05)
            with pytest.raises(TimedOutError, match="did not answer in time"):
                client.drain(0.05)
            with pytest.raises(TimedOutError, match="did not answer in time"):
                client.subscribe("late", timeout=0.05)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        client.drain()


def test_the_callback_may_publish_and_wait_for_it(broker: Mosquitto) -> None:
    done = threading.Event()
    seen: list[tuple[str, bytes]] = []

    def on_message(client: Client, message: Message) -> None:
        seen.append((str(message.topic), message.payload))
        if message.topic == "ask":
            # What ends other clients in a deadlock: the acknowledgement comes while the callback waits for it.
            client.publish("answer", message.payload, 2)
        elif len(seen) == 2 * EACH:
            done.set()

    client = client_of(broker)
    client.on_message = on_message
    with client, client_of(broker) as other:
        client.subscribe([("ask", 1), ("answer", 1)])
        for i in range(EACH):
            other.publish("ask", i, 1)
        assert done.wait(200)
    for topic in ("ask", "answer"):
        assert [payload for name, payload in seen if name == topic] == [b"%d" % i for i in range(EACH)]


def test_a_callback_that_fails_is_logged_and_the_next_message_comes(
    broker: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def on_message(client: Client, message: Message) -> None:
        if message.payload == b"bad":
            raise RuntimeError("a bug of the program's")
        done.set()

    client = client_of(broker)
    client.on_message = on_message
    with client:
        client.subscribe("fails", 1)
        client.publish("fails", b"bad", 1)
        client.publish("fails", b"good", 1)
        assert done.wait(200)
    assert "on_message failed for a message on fails" in caplog.text
    assert "a bug of the program's" in caplog.text


def test_the_callback_may_disconnect(broker: Mosquitto) -> None:
    done = threading.Event()

    def on_message(client: Client, message: Message) -> None:
        client.disconnect()
        done.set()

    client = client_of(broker)
    client.on_message = on_message
    client.connect()
    client.subscribe("bye", 1)
    client.post("bye", b"", 1)
    assert done.wait(200)
    assert not client.connected


def test_a_call_on_the_clients_own_thread_is_an_error_and_no_deadlock(mosquitto: StartBroker) -> None:
    broker = mosquitto()
    raised: list[BaseException] = []
    logger = logging.getLogger("tests.blocking")
    logged = threading.Event()

    class Publishes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                client.publish("log", record.getMessage(), 1)
            except BaseException as error:
                raised.append(error)
            logged.set()

    logger.addHandler(Publishes())
    with client_of(broker, logger=logger) as client:
        broker.kill()
        assert logged.wait(200)
    assert [type(error) for error in raised] == [ReentrantError]
    assert "would wait for itself" in str(raised[0])


def test_whoever_waits_hears_that_the_connection_is_lost_and_the_session_goes_on(
    mosquitto: StartBroker,
) -> None:
    broker = mosquitto()
    with client_of(broker, identifier="goes-on", session=SessionOptions(clean_start=False)) as client:
        client.publish("warm", b"", 1)
        with ThreadPoolExecutor(6) as pool:
            waiting = [pool.submit(client.get) for _ in range(3)]
            os.kill(broker.pid, signal.SIGSTOP)
            sent = [pool.submit(client.publish, "kept", i, 1) for i in range(3)]
            while client._client.session.outbox.count < 3:
                time.sleep(0.001)
            broker.kill()
            calls: list[Future[Any]] = [*waiting, *sent]
            for call in calls:
                with pytest.raises(NotConnectedError):
                    call.result(15)
        with pytest.raises(NotConnectedError):
            client.publish("kept", 9, 1)
        broker.start()
        with client_of(broker) as reader:
            reader.subscribe("kept", 1)
            client.connect()
            client.drain()
            assert sorted(reader.get(15).payload for _ in range(3)) == [b"0", b"1", b"2"]


def test_disconnecting_ends_every_call_of_every_thread(broker: Mosquitto) -> None:
    for _ in range(10):
        client = client_of(broker)
        client.connect()
        client.subscribe("ends", 1)
        begun = threading.Barrier(THREADS + 1)

        def work(number: int, client: Client = client, begun: threading.Barrier = begun) -> str:
            begun.wait()
            try:
                while True:
                    client.get() if number % 2 else client.publish("ends", b"", number % 3)
            except NotConnectedError as error:
                return str(error)

        with ThreadPoolExecutor(THREADS) as pool:
            calls = [pool.submit(work, number) for number in range(THREADS)]
            begun.wait()
            client.disconnect()
            client.disconnect()
            assert all("connected" in call.result(15) for call in calls)


def test_connecting_twice_and_calls_without_a_connection(broker: Mosquitto) -> None:
    client = client_of(broker)
    for call in (lambda: client.publish("t"), client.get, client.drain, lambda: client.subscribe("t")):
        with pytest.raises(NotConnectedError, match="not connected"):
            call()
    with client:
        with pytest.raises(ReentrantError):
            client.connect()
        client.publish("still/there", b"", 1)
        with pytest.raises(ArgumentError):
            client.publish("t/#", b"")
    with client:
        client.publish("again", b"", 1)


def test_a_server_that_is_not_there_leaves_nothing_behind(broker: Mosquitto) -> None:
    client = Client(HOST, 1)
    for _ in range(3):
        with pytest.raises(NotConnectedError, match="no connection"):
            client.connect()
    assert not client.connected


def test_the_program_acknowledges(broker: Mosquitto) -> None:
    with client_of(
        broker, identifier="acks", session=SessionOptions(clean_start=False, auto_ack=False)
    ) as client:
        client.subscribe("acks", 1)
        for i in range(3):
            client.publish("acks", i, 1)
        for _ in range(2):
            client.ack(client.get(15))
        assert client.get(15).payload == b"2"
        client.publish("barrier", b"", 1)
    with client_of(broker, identifier="acks", session=SessionOptions(clean_start=False)) as client:
        message = client.get(15)
        assert (message.payload, message.dup) == (b"2", True)
        with pytest.raises(TimedOutError):
            client.get(0.05)
    with client_of(broker, identifier="acks"):
        pass


async def test_it_stands_beside_an_asyncio_program(broker: Mosquitto) -> None:
    with client_of(broker) as client:
        await asyncio.to_thread(client.publish, "beside", b"", 1)


PROGRAM = """
import contextlib, sys, threading
from headwater_host.errors import NotConnectedError
from headwater_host.client.mqtt import Will
from headwater_host.client.blocking import Client

def wait():
    with contextlib.suppress(NotConnectedError):
        client.get()

client = Client("127.0.0.1", int(sys.argv[1]), will=Will("gone", b"will"))
client.connect()
client.subscribe("never")
threading.Thread(target=wait, daemon=True).start()
for i in range(50):
    client.post("last", i, 1)
client.drain()
print("done", flush=True)
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_the_interpreter_ends_and_says_so_to_the_server(broker: Mosquitto, end: str) -> None:
    with client_of(broker) as other:
        other.subscribe("gone")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM + end, str(broker.port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout == "done\n"
        assert "headwater" not in done.stderr, done.stderr
        # It has said DISCONNECT: its will is not published.
        other.publish("gone", b"end", 1)
        assert other.get(15).payload == b"end"


def test_a_will_is_published_without_it(broker: Mosquitto) -> None:
    # Otherwise the test above would prove nothing.
    with client_of(broker) as other:
        other.subscribe("gone")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM + "import os; os._exit(0)", str(broker.port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout == "done\n"
        assert other.get(15).payload == b"will"


ENDING = """
import sys, threading, time
from headwater_host.client.mqtt import Will
from headwater_host.client.blocking import Client

def end(*args):
    if armed.is_set():
        {raises}

armed = threading.Event()
client = Client("127.0.0.1", int(sys.argv[1]), will=Will("gone", b"will"), reconnect=True)
client.{handler} = end
with client:
    client.subscribe("end")
    armed.set()
    {causes}
    {waits}
print("not reached")
"""


@pytest.mark.parametrize(
    "waits",
    ["time.sleep(600)", "threading.Event().wait()", "while True: client.publish('x', b'', 1, timeout=600)"],
)
@pytest.mark.parametrize(
    "handler, causes",
    [
        ("on_message", "client.publish('end', b'', 1)"),
        ("on_connection", "client._loop.call_soon_threadsafe(client._client.connection.drop, -62)"),
    ],
)
def test_a_handler_can_end_the_program(broker: Mosquitto, handler: str, causes: str, waits: str) -> None:
    program = ENDING.format(handler=handler, causes=causes, waits=waits, raises="sys.exit(3)")
    with client_of(broker) as other:
        other.subscribe("gone")
        done = subprocess.run(
            [sys.executable, "-c", program, str(broker.port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stdout == ""
        assert done.returncode == 3, done.stderr
        assert f"{handler}" in done.stderr
        assert "the program ends" in done.stderr
        if handler == "on_message":
            # It has said DISCONNECT: its will is not published.
            other.publish("gone", b"end", 1)
            assert other.get(15).payload == b"end"


def test_a_handler_ends_a_program_that_ignores_sigint(broker: Mosquitto) -> None:
    """As programs do that a shell script starts in the background."""
    ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    program = ignores + ENDING.format(
        handler="on_message",
        # In a thread, so that the main thread is in no call of the client when the handler raises.
        causes="threading.Thread(target=client.publish, args=('end', b'', 1)).start()",
        waits="threading.Event().wait(600)",
        raises="sys.exit(3)",
    )
    with client_of(broker) as other:
        other.subscribe("gone")
        done = subprocess.run(
            [sys.executable, "-c", program, str(broker.port)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
        other.publish("gone", b"end", 1)
        assert other.get(15).payload == b"end"


def test_a_posted_message_has_a_state(broker: Mosquitto) -> None:
    called = threading.Event()

    def callback(delivery: Delivery) -> None:
        # A callback may call the client.
        assert delivery.done()
        client.publish("callback", b"", 1)
        called.set()

    client = client_of(broker, identifier="states", session=SessionOptions(clean_start=False))
    with client:
        assert client.post("t", b"x").wait() == 0
        delivery = client.post_nowait("t", b"x", 2)
        assert delivery.packet_id > 0
        delivery.add_done_callback(callback)
        assert delivery.wait(60) == delivery.reason_code == 0
        assert delivery.error is None
        assert called.wait(60)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            late = client.post("t", b"x", 1)
            with pytest.raises(TimedOutError):
                late.wait(0.05)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        client.drain(60)
        assert late.done()
        kept = client.post("t", b"x", 1)
    # Whether its acknowledgement came before the end or comes after the next beginning.
    if not kept.done():
        with pytest.raises(NotConnectedError):
            kept.wait()
    with client:
        assert kept.wait(60) == 0


def test_handlers_may_call_the_client(broker: Mosquitto) -> None:
    """As programs do that subscribe when they are connected."""
    came: list[bytes] = []
    both = threading.Event()

    def on_connection(error: ClientError | None) -> None:
        if error is None:
            client.subscribe("re/enter", 1)
            client.publish("re/enter", b"first", 1)

    def on_message(_: Client, message: Message) -> None:
        came.append(message.payload)
        if message.payload == b"first":
            client.publish("re/enter", b"second", 1)
        else:
            both.set()

    client = client_of(broker)
    client.on_connection = on_connection
    client.on_message = on_message
    with client:
        assert both.wait(60)
    assert came == [b"first", b"second"]


def test_options_are_those_of_the_asyncio_client() -> None:
    assert Client("nowhere", will=Will("t"), connection=ConnectionOptions(keepalive=5)).identifier.startswith(
        "headwater-"
    )
    with pytest.raises(TypeError, match="no_such_option"):
        Client("nowhere", no_such_option=1)  # type: ignore[call-arg]
