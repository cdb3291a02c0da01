"""Each command of the proxy affects the bytes of its direction only."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.cluster.proxy import Network, Proxy
from tests.waiting import wait_until
from tools.broker import HOST

#: For what must not come.
A_WHILE = 0.2


class Echo:
    """Answers each byte with itself, and keeps what it gets."""

    def __init__(self) -> None:
        self.got = b""
        self.ended = 0
        self.server = socket.create_server((HOST, 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection = self.server.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.answer, args=[connection], daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1000):
                self.got += data
                connection.sendall(data)
        except OSError:
            pass
        connection.close()
        self.ended += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Network() as network:
        yield network.proxy(echo.server.getsockname())


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.address, 100)


def nothing_comes(client: socket.socket) -> None:
    client.settimeout(A_WHILE)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(100)


def is_reset(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_bytes_and_the_end_pass(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        client.sendall(b"one")
        assert client.recv(3) == b"one"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    wait_until(lambda: echo.ended == 1)
    assert (proxy.up.passed, proxy.down.passed, proxy.count) == (3, 3, 1)


def test_each_direction_is_held_apart(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        proxy.down.hold()
        client.sendall(b"a")
        wait_until(lambda: echo.got == b"a")
        nothing_comes(client)
        proxy.down.release()
        assert client.recv(9) == b"a"
        proxy.up.hold()
        client.sendall(b"b")
        nothing_comes(client)
        assert echo.got == b"a"
        proxy.heal()
        assert client.recv(9) == b"b"


def test_a_connection_through_an_isolated_proxy_opens_and_says_nothing(proxy: Proxy, echo: Echo) -> None:
    proxy.isolate()
    with dial(proxy) as client:
        client.sendall(b"a")
        nothing_comes(client)
        assert echo.got == b""
        proxy.heal()
        assert client.recv(9) == b"a"


def test_cut_resets_and_refuse_goes_on_with_it(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        proxy.cut()
        assert is_reset(client)
    wait_until(lambda: echo.ended == 1)
    proxy.refuse()
    with dial(proxy) as client:
        assert is_reset(client)
    proxy.heal()
    with dial(proxy) as client:
        client.sendall(b"b")
        assert client.recv(1) == b"b"


def test_a_deaf_proxy_refuses_connections(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        proxy.deafen()
        assert is_reset(client)
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    proxy.listen()
    with dial(proxy) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"


def test_a_reply_is_lost_at_a_given_request(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        proxy.up.when(b"COMMIT", proxy.down.swallow)
        client.sendall(b"BEGIN")
        assert client.recv(9) == b"BEGIN"
        client.sendall(b"COMMIT")
        wait_until(lambda: echo.got == b"BEGINCOMMIT")
        nothing_comes(client)
        proxy.cut()
        assert is_reset(client)
    proxy.heal()


def test_delay_applies_to_one_direction(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as client:
        proxy.down.delay = A_WHILE
        began = time.monotonic()
        client.sendall(b"a")
        wait_until(lambda: echo.got == b"a")
        assert client.recv(1) == b"a"
        assert time.monotonic() - began >= A_WHILE
