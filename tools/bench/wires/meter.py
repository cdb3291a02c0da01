"""A proxy that counts: what a session writes to a broker and what the broker writes to it, above TCP.

What messages cost is the difference of two whole sessions, one with them and one without: so nothing of a protocol has
to be known, and no moment has to be found at which everything has arrived.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.broker import HOST

COUNT = 100
#: Longer than any session takes: a peer that hangs fails the run instead of holding it up.
SECONDS = 60.0


@dataclass(frozen=True)
class Cost:
    """Bytes per message: to the broker, and from it."""

    up: float
    down: float

    @property
    def total(self) -> float:
        return self.up + self.down


#: Connects to a port and closes in good order. In between: so many messages, each when the one before is acknowledged
#: to its end, and then so many without waiting.
Session = Callable[[int, int, int], None]


@contextlib.contextmanager
def _noting(broken: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Then there may have been more to count.
        broken.append(error)


def _pass_on(source: socket.socket, sink: socket.socket, counts: list[int], broken: list[OSError]) -> None:
    with _noting(broken):
        while data := source.recv(65536):
            counts.append(len(data))
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _bring_back(
    broker: socket.socket, client: socket.socket, counts: list[int], broken: list[OSError]
) -> None:
    found: list[OSError] = []
    _pass_on(broker, client, counts, found)
    # RabbitMQ resets the connection behind its last frame, which the client has waited for.
    broken.extend(error for error in found if not isinstance(error, ConnectionResetError))


def bytes_of(session: Session, port: int, singly: int, together: int) -> tuple[int, int]:
    """How many bytes went to the broker and came from it, from the first to the last of one session's connection.

    Raises ConnectionError when either end does not close it in good order, or in time, and when nothing was sent.
    """
    up: list[int] = []
    down: list[int] = []
    broken: list[OSError] = []
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(SECONDS)

        def serve() -> None:
            with (
                _noting(broken),
                server.accept()[0] as client,
                socket.create_connection((HOST, port), SECONDS) as broker,
            ):
                for end in (client, broker):
                    end.settimeout(SECONDS)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_bring_back, args=(broker, client, down, broken))
                back.start()
                _pass_on(client, broker, up, broken)
                back.join()

        proxy = threading.Thread(target=serve, daemon=True)
        proxy.start()
        session(server.getsockname()[1], singly, together)
        proxy.join()
    if broken or not up:
        raise ConnectionError(f"the session's connection did not end well: {broken or 'nothing was sent'}")
    return sum(up), sum(down)


def costs(session: Session, port: int, warm: int = 1) -> tuple[Cost, Cost]:
    """What a message costs one at a time, and as one of a hundred that nobody waits between.

    ``warm`` messages go before: what a connection spends once is not counted, and numbers have the size they get.
    """
    none = bytes_of(session, port, warm, 0)
    singly = bytes_of(session, port, warm + COUNT, 0)
    together = bytes_of(session, port, warm, COUNT)
    up, down = zip(none, singly, together, strict=True)
    return (
        Cost((up[1] - up[0]) / COUNT, (down[1] - down[0]) / COUNT),
        Cost((up[2] - up[0]) / COUNT, (down[2] - down[0]) / COUNT),
    )
