"""The load: the same messages, publishers, subscribers and windows for every server, from one process.

Three tasks. ``publish``: subscribers are known to the server, and away. ``through``: they are there. ``paced``: so many
messages a second, and how long each took from the publisher to the subscriber.
"""

from __future__ import annotations

import abc
import contextlib
import math
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tools.bench.hubs.wires import DIGITS, SECONDS, Publisher, Subscriber, Wire, WireError

PUBLISHERS = 4
#: What each publisher may have unanswered, by QoS; at QoS 0, unheard by the subscriber.
WINDOWS = (100, 100, 16)
#: Messages that each publisher has at most: they are made beforehand.
MOST = 25_000
_READ = 1 << 18


@dataclass
class Outcome:
    """``count`` messages in ``seconds``; how long each took, where that was asked for."""

    count: int
    seconds: float
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.seconds


class _End(abc.ABC):
    """One end at work: what was read in part, what is to be written."""

    def __init__(self, link: Publisher | Subscriber):
        self.socket = link.socket
        self.socket.setblocking(False)
        self.out = memoryview(b"")
        self.rest = b""

    def fileno(self) -> int:
        return self.socket.fileno()

    def read(self) -> bytes:
        data = self.socket.recv(_READ)
        if not data:
            raise WireError("the server closed the connection")
        return self.rest + data

    def write(self, more: bytes = b"") -> None:
        if more:
            self.out = memoryview(bytes(self.out) + more)
        if self.out:
            with contextlib.suppress(BlockingIOError):
                self.out = self.out[self.socket.send(self.out) :]

    @abc.abstractmethod
    def take(self) -> None:
        """Read, and answer."""


class Sender(_End):
    """Publishes ``count`` messages at most, those that ``fill`` asks for."""

    def __init__(self, link: Publisher, count: int):
        super().__init__(link)
        self._link = link
        self.process = link.process
        self._block = link.messages(count)
        self.count = count
        self.sent = self.done = 0
        #: When each was sent.
        self.times: list[float] = []

    def fill(self, until: int) -> None:
        """Send up to ``until`` in all, as far as there are so many."""
        until = min(until, self.count)
        if until > self.sent:
            size = self._link.size
            more = self._block[self.sent * size : until * size]
            self.times += [time.perf_counter()] * (until - self.sent)
            self.sent = until
            self.write(more)

    def mark(self) -> None:
        self.write(self._link.mark)

    def take(self) -> None:
        done, answer, self.rest = self._link.take(self.read())
        self.done += done
        self.write(answer)


class _Receiver(_End):
    def __init__(self, link: Subscriber):
        super().__init__(link)
        self._link = link
        #: The numbers of what came, and when.
        self.got: list[tuple[bytes, float]] = []
        self.count = 0

    def take(self) -> None:
        numbers, answer, self.rest = self._link.take(self.read())
        if numbers:
            self.got.append((numbers, time.perf_counter()))
            self.count += len(numbers) // DIGITS
        self.write(answer)

    def check(self, count: int) -> list[float]:
        """When each message came. Raises WireError when one is missing, came twice, or in another order."""
        numbers = b"".join(some for some, _ in self.got)
        if numbers != b"".join(b"%08d" % n for n in range(count)):
            raise WireError(f"of {count} messages came {len(numbers) // DIGITS}, or not in their order")
        return [when for some, when in self.got for _ in range(len(some) // DIGITS)]


class _Load:
    """All ends. Raises WireError when nothing comes for too long."""

    def __init__(self, wire: Wire, senders: list[Sender], receivers: list[_Receiver]):
        self.window = WINDOWS[wire.qos]
        self.qos = wire.qos
        self.senders = senders
        self.pairs = list(zip(senders, receivers, strict=bool(receivers)))
        self._ends: list[_End] = [*senders, *receivers]
        self._last = time.monotonic()

    def turn(self, seconds: float) -> None:
        """Wait until something can be read, for so long at most; write what can be written."""
        waiting = [end for end in self._ends if end.out]
        readable, writable, _ = select.select(self._ends, waiting, [], seconds)
        for end in writable:
            end.write()
        for end in readable:
            end.take()
        if readable or writable:
            self._last = time.monotonic()
        elif time.monotonic() - self._last > SECONDS:
            raise WireError("the server does not go on")

    @property
    def is_over(self) -> bool:
        """Whether all that was sent has come, and is answered."""
        return all(
            sender.sent == receiver.count and (not self.qos or sender.done == sender.sent)
            for sender, receiver in self.pairs
        )

    @property
    def sent(self) -> int:
        return sum(sender.sent for sender in self.senders)


@contextlib.contextmanager
def _load(wire: Wire, count: int, *, away: bool = False) -> Iterator[_Load]:
    """Everybody is there; the subscribers, if they are to be ``away``, were."""
    with contextlib.ExitStack() as stack:
        subscribers = [wire.subscriber(n) for n in range(PUBLISHERS)]
        for subscriber in subscribers:
            stack.callback(subscriber.close)
            if away:
                subscriber.close()
        publishers = [wire.publisher(n) for n in range(PUBLISHERS)]
        for publisher in publishers:
            stack.callback(publisher.close)
        senders = [Sender(one, count) for one in publishers]
        yield _Load(wire, senders, [] if away else [_Receiver(one) for one in subscribers])


def publish(wire: Wire, seconds: float) -> Outcome:
    """Publish as fast as the server answers, for so long; the time ends with the last answer."""
    with _load(wire, MOST, away=True) as load:
        began = time.perf_counter()
        (_unanswered if wire.qos == 0 else _answered)(load, began + seconds)
        return Outcome(load.sent, time.perf_counter() - began)


def _unanswered(load: _Load, end: float) -> None:
    """Publish what the sockets take, and then what is answered."""
    left = list(load.senders)
    while left:
        over = time.perf_counter() >= end
        for sender in [sender for sender in left if not sender.out]:
            if over or sender.sent == sender.count:
                sender.mark()
                left.remove(sender)
            else:
                sender.fill(sender.sent + load.window)
        load.turn(1.0 if all(sender.out for sender in left) else 0.0)
    while not all(sender.done for sender in load.senders):
        load.turn(1.0)


def _answered(load: _Load, end: float) -> None:
    while time.perf_counter() < end and any(sender.done < sender.count for sender in load.senders):
        for sender in load.senders:
            sender.fill(sender.done + load.window)
        load.turn(0.1)
    while any(sender.done < sender.sent for sender in load.senders):
        load.turn(1.0)


def burst(wire: Wire, count: int) -> None:
    """Publish so many messages as fast as the server answers, from one connection; whoever subscribes is not ours."""
    with contextlib.closing(wire.publisher(0)) as publisher:
        load = _Load(wire, [Sender(publisher, count)], [])
        (_unanswered if wire.qos == 0 else _answered)(load, math.inf)


def steady(wire: Wire, rate: float, count: int) -> None:
    """Publish so many messages, so many a second, at QoS 1 or 2; whoever subscribes is not ours."""
    with contextlib.closing(wire.publisher(0)) as publisher:
        sender = Sender(publisher, count)
        load = _Load(wire, [sender], [])
        began = time.perf_counter()
        while sender.done < count:
            due = int((time.perf_counter() - began) * rate)
            sender.fill(min(due, sender.done + load.window))
            load.turn(1 / rate)


def through(wire: Wire, seconds: float) -> Outcome:
    """Publish for so long; the time ends when the last message has come."""
    with _load(wire, MOST) as load:
        began = time.perf_counter()
        end = began + seconds
        while time.perf_counter() < end and any(sender.sent < sender.count for sender in load.senders):
            for sender, receiver in load.pairs:
                sender.fill((sender.done if wire.qos else receiver.count) + load.window)
            load.turn(0.1)
        while not load.is_over:
            load.turn(1.0)
        for sender, receiver in load.pairs:
            receiver.check(sender.sent)
        return Outcome(load.sent, max(receiver.got[-1][1] for _, receiver in load.pairs) - began)


def paced(wire: Wire, rate: float, count: int) -> Outcome:
    """So many messages a second, by the publishers in turn."""
    with _load(wire, -(-count // PUBLISHERS)) as load:
        began = time.perf_counter()
        total = 0
        while total < count or not load.is_over:
            while total < count and began + total / rate <= time.perf_counter():
                sender = load.senders[total % PUBLISHERS]
                sender.fill(sender.sent + 1)
                total += 1
            load.turn(max(0.0, began + total / rate - time.perf_counter()) if total < count else 1.0)
        outcome = Outcome(total, time.perf_counter() - began)
        for sender, receiver in load.pairs:
            came = receiver.check(sender.sent)
            outcome.latencies += [there - sent for there, sent in zip(came, sender.times, strict=True)]
        return outcome
