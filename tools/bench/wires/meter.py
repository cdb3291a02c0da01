"""A proxy that counts the bytes of a session to and from a broker, above TCP.

The cost of messages is the difference between two complete sessions, one with and one without them, so the proxy
needs no knowledge of the protocol.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tools.broker import HOST

COUNT = 100
#: Timeout of a session, so that a hanging peer fails the run.
SECONDS = 60.0


@dataclass(frozen=True)
class Cost:
    """Bytes per message to the broker and from it."""

    up: float
    down: float

    @property
    def total(self) -> float:
        return self.up + self.down


#: Connects to a port, sends messages one at a time, each after the previous one is acknowledged, then others without
#: waiting, and closes cleanly.
Session = Callable[[int, int, int], None]


@contextlib.contextmanager
def _noting(broken: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Otherwise bytes may be missing.
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
    # RabbitMQ resets the connection after its last frame, which the client has received.
    broken.extend(error for error in found if not isinstance(error, ConnectionResetError))


def bytes_of(session: Session, port: int, singly: int, together: int) -> tuple[int, int]:
    """Return the bytes to and from the broker over one session's whole connection.

    Raises ConnectionError if an end does not close it cleanly or in time, or if nothing was sent.
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
        raise ConnectionError(
            f"the session's connection did not close cleanly: {broken or 'nothing was sent'}"
        )
    return sum(up), sum(down)


def costs(session: Session, port: int, warm: int = 1) -> tuple[Cost, Cost]:
    """Return the cost of a single message, and of one of a hundred without waiting in between.

    `warm` messages are sent before, to exclude one-time costs and to let numbers reach their usual size.
    """
    none = bytes_of(session, port, warm, 0)
    singly = bytes_of(session, port, warm + COUNT, 0)
    together = bytes_of(session, port, warm, COUNT)
    up, down = zip(none, singly, together, strict=True)
    return (
        Cost((up[1] - up[0]) / COUNT, (down[1] - down[0]) / COUNT),
        Cost((up[2] - up[0]) / COUNT, (down[2] - down[0]) / COUNT),
    )
