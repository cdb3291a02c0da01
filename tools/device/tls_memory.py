"""What TLS takes from both heaps: the growth for each of ``count`` CAs, handshakes or connections."""

import gc
import json
import select
import sys

from headwater_board.tls import Tls

arguments = json.loads(sys.argv[1])
what = arguments["what"]
count = arguments["count"]
kept: "list[object]" = []


def native() -> int:
    """Return the bytes of C's heap, which mbedTLS uses under unix."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("no VmData")


def python() -> int:
    """Return the bytes of Python's heap that are in use."""
    gc.collect()
    return gc.mem_alloc()


def dialer() -> Tls:
    return Tls(arguments["host"], arguments["port"], ca=arguments["ca"])


def one(shared: Tls) -> None:
    if what == "ca":
        kept.append(dialer())
        return
    transport = shared.open()
    kept.append(transport)
    source = shared.source()
    poller = select.poll()
    poller.register(source, select.POLLIN)
    # A handshake has come as far as it does when the server is silent.
    silent_ms = 60 if what == "handshake" else 10000
    while not transport.write(b"x", 0, 1) and poller.poll(silent_ms):
        pass


def grow(shared: Tls, n: int) -> "list[int]":
    before = native(), python()
    for _ in range(n):
        one(shared)
    return [(native() - before[0]) // n, (python() - before[1]) // n]


shared = dialer()
# The first ones find room in pages that the process already has.
grow(shared, count)
print(json.dumps(grow(shared, count)))
