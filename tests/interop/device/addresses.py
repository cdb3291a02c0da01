"""A name that has several addresses, of which the last answers: each attempt that fails leads to the next."""

import socket
import sys

from headwater.mqtt.client import Client
from headwater_board import tcp


class Names:
    """``socket``, with a name of our own."""

    SOCK_STREAM = socket.SOCK_STREAM
    socket = socket.socket
    asked = 0

    @classmethod
    def getaddrinfo(cls, host: str, port: int, *more: int) -> "list[object]":
        cls.asked += 1
        ports = [int(port) for port in sys.argv[1:]]
        return [socket.getaddrinfo("127.0.0.1", port, *more)[0] for port in ports]


tcp.socket = Names
client = Client(tcp.Tcp("broker.local", timeout_ms=200), b"board")
failed = []
for _ in range(5):
    try:
        client.connect()
        break
    except OSError as e:
        failed.append(e.errno)
print(failed, client.connected)
# The address that answers is kept, without asking again.
client.connect()
print(client.connected, Names.asked)
