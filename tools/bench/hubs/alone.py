"""What only the hub is asked: how long one client waits for its answers while another does much, and memory."""

from __future__ import annotations

import contextlib
import re
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headwater.fmq import spec
from headwater_host.fmq.values import encode
from headwater_host.hub import frames
from headwater_host.hub.config import ClientLimits
from headwater_host.hub.storage import Limits
from headwater_host.hub.storage.records import HELD
from tools.bench.hubs.load import Sender
from tools.bench.hubs.wires import SIZE, Fmq, FmqLink, WireError, ident_of

MIB = 1 << 20
#: Seconds between two messages of the client that waits.
_PAUSE = 0.005
#: Seconds until all must be over.
_SECONDS = 300.0
#: Bytes of memory for each message, each id, and of an id.
_QUEUED, _REMEMBERED, _ID = 16, 250, 13


def answers(wire: Fmq, sender: Sender, end: Callable[[], bool]) -> list[float]:
    """Seconds until each answer at QoS 1, one message after the other, while ``sender`` does what it does."""
    other = Sender(wire.publisher(1), 25_000)
    deadline = time.monotonic() + _SECONDS
    waits: list[float] = []
    due = 0.0
    while not end() or other.done < other.sent:
        if other.done == other.sent and time.perf_counter() >= due and other.sent < other.count:
            other.fill(other.sent + 1)
        readable, writable, _ = select.select([sender, other], [sender] if sender.out else [], [], 0.002)
        if writable:
            sender.write()
        for one in readable:
            before = one.done
            one.take()
            if one is other and one.done > before:
                waits.append(time.perf_counter() - one.times[-1])
                due = time.perf_counter() + _PAUSE
        if time.monotonic() > deadline:
            raise WireError("the hub does not go on")
    other.socket.close()
    return waits


def burst(wire: Fmq, count: int) -> tuple[dict[str, list[float]], float]:
    """By what another client does: how long each answer took; and the messages/s of its burst."""
    sender = Sender(wire.publisher(0), count)
    end = time.perf_counter() + 2.0
    found = {"nothing": answers(wire, sender, lambda: time.perf_counter() > end)}
    began = time.perf_counter()
    sender.fill(count)
    found[f"publishes {count:,} messages"] = answers(wire, sender, lambda: sender.done >= count)
    rate = count / (time.perf_counter() - began)
    ident = ident_of(spec.UNREGISTER, sender.process, time.time_ns())
    sender.write(frames.framed(spec.UNREGISTER << 4, ident, encode(wire.topic(0))))
    end = time.perf_counter() + 2.0
    found["unregisters their topic"] = answers(
        wire, sender, lambda: sender.done > count and time.perf_counter() > end
    )
    sender.socket.close()
    return found, rate


def resident(pid: int, what: str = "VmRSS") -> int:
    """Bytes of a process that are in memory; "VmHWM": the most there were."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def stored(pid: int, wire: Fmq, count: int) -> tuple[float, float]:
    """Publish so many messages: bytes by which the hub has grown, and what docs/hub.md says."""
    before = resident(pid)
    sender = Sender(wire.publisher(0), count)
    sender.fill(count)
    answers(wire, sender, lambda: sender.done >= count)
    sender.socket.close()
    limits = Limits()
    cached = min(limits.cache, count * (HELD + SIZE + _ID))
    return resident(pid) - before, cached + count * _QUEUED + min(count, limits.ids) * _REMEMBERED


def large(pid: int, port: int, count: int, size: int) -> dict[str, tuple[float, float]]:
    """Have so many clients send a large message each, at once: by when, bytes by which the hub has grown, and what
    docs/hub.md says."""
    before = resident(pid)
    links = [FmqLink(port, f"large {n}") for n in range(count)]

    def send(link: FmqLink) -> None:
        body = frames.message("large", (), bytes(size - 64))
        ident = ident_of(spec.PUBLISH, link.process, time.time_ns())
        link.socket.settimeout(60)
        # A hub that would hold more than it may ends the connection.
        with contextlib.suppress(OSError):
            link.socket.sendall(frames.publish(ident, body, 1))
            link.socket.recv(100)

    threads = [threading.Thread(target=send, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    most = resident(pid, "VmHWM") - before
    for link in links:
        link.socket.close()
    # A hub that is given the processor again and again has nothing left to do.
    for _ in range(20):
        FmqLink(port, "").socket.close()
    limits, clients = Limits(), ClientLimits()
    held = min(clients.memory, count * size)
    kept = min(limits.cache, count * size)
    waiting = min(limits.waiting, count * size)
    what = f"{count} messages of {size // MIB} MiB at once"
    return {
        f"{what}: the most": (most, held + kept + waiting + 4 * size),
        f"{what}: what stays": (resident(pid) - before, kept),
    }
