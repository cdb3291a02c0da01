"""Resolve names with the name server at a port, and connect by name: RESOLVER PORT BROKER_PORT."""

import sys
import time

from headwater.mqtt.client import Client
from headwater_board import resolver as module
from headwater_board.clock import Sntp
from headwater_board.resolver import Resolver
from headwater_board.tcp import Tcp

KNOWN = {"kept": ["10.0.0.7"], "old.test": ["127.0.0.2"]}
port, broker = int(sys.argv[1]), int(sys.argv[2])
# Of the name server here, instead of the local network's.
module._MDNS = ("127.0.0.1", port)
resolver = Resolver("127.0.0.1", timeout_ms=600, retry_ms=100, addresses=KNOWN, port=port)


def resolve(host: str) -> None:
    began = time.ticks_ms()
    longest = 0
    while True:
        before = time.ticks_ms()
        try:
            found = resolver.resolve(host)
        except OSError as e:
            print(host, "errno", e.errno)
            return
        longest = max(longest, time.ticks_diff(time.ticks_ms(), before))
        if found is not None:
            break
        time.sleep_ms(1)
    took = time.ticks_diff(time.ticks_ms(), began)
    print(host, found, "late" if took > 90 else "at once", "blocked" if longest > 80 else "free")


for host in sys.argv[3:]:
    resolve(host)

# A host that no query can have is refused before the first poll.


def refused(make: "object", *arguments: "object") -> None:
    try:
        make(*arguments, resolver=resolver)  # type: ignore[operator]
    except ValueError as error:
        print(error)


for bad in ("", "a..b", ".a", "x" * 64 + ".test", "x" * 300, "ab." * 84 + "test"):
    refused(Tcp, bad)
    refused(Sntp, (bad,))
for good in ("x" * 63 + ".test", "a.test.", "192.168.4.1", "b\u00fccher.test"):
    Tcp(good, resolver=resolver)


def connect(client: Client) -> None:
    try:
        client.connect()
        print("connected", client.connected)
    except OSError as e:
        print("errno", e.errno)


# The address that answers is used again. One that does not is asked for again, and kept when nobody says another.
for host in ("broker.test", "old.test"):
    client = Client(Tcp(host, broker, resolver=resolver), b"board")
    for _ in range(3):
        connect(client)
